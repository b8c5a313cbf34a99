// Stands for NVIDIA's management library in resources_test.cc: a device that is 42 % busy and one that doesn't tell.

static int initialised = 0;

int nvmlInit_v2(void) {
  initialised = 1;
  return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  if (!initialised) return 1;
  *device = (void*)(long)bus_id[0];
  return bus_id[0] == 'x' ? 6 : 0;
}

int nvmlDeviceGetUtilizationRates(void* device, unsigned int* gpu_and_memory) {
  gpu_and_memory[0] = 42;
  gpu_and_memory[1] = 7;
  return device == (void*)'m' ? 3 : 0;
}
