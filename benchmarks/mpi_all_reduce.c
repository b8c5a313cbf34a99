/* The same for MPI: rank 0 prints a JSON line per size with seconds per MPI_Allreduce, the median of all calls,
 * or of the blocks for those of some microseconds.
 *
 *   mpirun -n 2 mpi_all_reduce BLOCKS BYTES...
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const int blocks = atoi(argv[1]);
  double* seconds = malloc(sizeof(double) * blocks * 2000);
  for (int i = 2; i < argc; ++i) {
    const long long bytes = atoll(argv[i]);
    const int count = (int)(bytes / 4);
    float* in = malloc(bytes);
    float* out = malloc(bytes);
    for (int k = 0; k < count; ++k) in[k] = out[k] = 1e-30f;
    MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double once = MPI_Wtime() - begin;
    int calls = once > 0.1 ? 1 : once < 5e-6 ? 20000 : (int)(0.1 / once), agreed;
    MPI_Allreduce(&calls, &agreed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    int samples = 0;
    for (int block = 0; block < blocks; ++block) {
      MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      MPI_Barrier(MPI_COMM_WORLD);
      const int batch = agreed > 2000 ? agreed : 1;
      for (int done = 0; done < agreed; done += batch) {
        begin = MPI_Wtime();
        for (int call = 0; call < batch; ++call) MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        seconds[samples++] = (MPI_Wtime() - begin) / batch;
      }
    }
    qsort(seconds, samples, sizeof(double), ascending);
    if (rank == 0) printf("{\"bytes\": %lld, \"mpi\": %.3e}\n", bytes, seconds[samples / 2]);
    fflush(stdout);
    free(in);
    free(out);
  }
  MPI_Finalize();
  return 0;
}
