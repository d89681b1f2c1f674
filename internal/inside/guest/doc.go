// Package guest is the first process in every sandbox. It starts all other processes and serves files, over HTTP with
// E2B's envd protocol. Connections to it and to other ports in the sandbox come over a socket that it inherits (see
// ConduitFD).
//
// It serves the process calls of the Connect service process.Process, the calls of filesystem.Filesystem, and over
// plain HTTP /files, /health, /init and /envs. The service sandpit.v1.Commands is sandpit's own; it replays the
// output of commands.
//
// A guest starts without a key and rejects all calls but /health and /init. The first call of /init sets the key,
// before any program runs in the sandbox; from then on every call but /health needs the key in the header
// X-Access-Token, /init included. So no program in the sandbox can replace it. Programs in the sandbox can ask the
// guest only for the environment that it gives to programs (interpreter.EnvironSocket).
//
// With the argument "launch" the executable starts a guest beside the first process of a foreign computer, such as a
// sandbox of a cloud: that guest listens on a TCP port, and its key is in a file that only root can read.
//
// With the argument "interpreter" the executable is not a guest: it runs code in kernels, see package interpreter.
package guest
