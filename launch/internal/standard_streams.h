#pragma once

namespace lockstep {

/// Some start programs with no standard input, output or error at all, daemons and cron's scripts among them. The next
/// files to be opened would take their numbers, and what is meant for the console would go there: they get /dev/null.
/// To be called before anything is opened.
void OpenStandardStreams();

}  // namespace lockstep
