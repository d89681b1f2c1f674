// Package interpreter runs code in kernels: programs that keep variables between runs. It is a service
// inside a sandbox; "sandpit-guest interpreter" serves it there on a port.
//
// # Use
//
// A Service has contexts; each has a language, a directory and a kernel. Service.Run runs code in
// one and emits Events, in order, until an End. Other front ends can call a Service directly, or use
// HTTP with Service.Handler, in the form of E2B's code interpreter:
//
//	POST   /execute                {code, context_id | language, env_vars} → lines of JSON, one for each Event
//	POST   /contexts               {language, cwd} → {id, language, cwd}
//	GET    /contexts               → [{id, language, cwd}], the newest last
//	DELETE /contexts/{id}
//	POST   /contexts/{id}/restart
//	GET    /health                 → 200 "OK" when the first kernels can be used, until then 503
//
// Errors are plain text: 400 for an invalid request, 404 for an unknown context, 429 for too many
// contexts or waiting runs, 500 for the rest. A run is interrupted when its client disconnects.
//
// # Without a port
//
// A Remote, outside the sandbox, has a Service of its own inside. It is started as a user, and reads and
// writes lines of JSON on its standard input and output ("sandpit-guest interpreter -stdio").
//
// # Kernels
//
// Kernels are programs of this package (kernels/) that another program runs: IPython's shell in python3 (or
// a shell of this package if there is no IPython), V8's read-eval-print mode in node, bash. Pipes connect
// service and kernel, inherited as descriptors:
//
//	1, 2  output of programs; after each run a mark, which is different for each kernel
//	3     runs: a line of JSON {id, code, language, env, reseed}, or three texts for bash;
//	      an empty line interrupts, where a signal would not be handled
//	4     lines of JSON: ready, count, result, error, done
//	5     the source of the kernel
//
// So nothing listens on a port, and every open connection can be saved with the sandbox's memory. A kernel is
// as hostile as the code that it runs: lines have a largest size, output is passed on as it is read, and a
// kernel that violates the protocol is killed. Code that keeps running for Patience after an interrupt is
// killed, too. When a kernel has ended, the current run reports it, and the next run has a new kernel.
package interpreter
