// Package guest is the first process in every sandbox: it starts all others and
// serves files, over HTTP with E2B's envd protocol. Its connections, and those to
// any port inside, come over a socket that it is born with (see ConduitFD).
//
// Served are the process calls of the Connect service process.Process, the file
// calls of filesystem.Filesystem except those that watch, and over plain HTTP
// /files, /health, /init and /envs. Our own service sandpit.v1.Commands tells again
// what commands have put out.
//
// A guest starts without a key and obeys nobody. The first call of /init gives
// it one, before anything else runs beside it; from then on every call but
// /health needs the key in the header X-Access-Token, /init included. So
// nothing inside can give it another. All that programs inside can ask of the guest is the environment that it gives
// to programs (interpreter.EnvironSocket).
//
// With the argument "interpreter" the program is not a guest: it runs code in kernels, as package interpreter has it.
package guest
