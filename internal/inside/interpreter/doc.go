// Package interpreter runs code in kernels: programs that keep variables from one run to the next. It is
// a service inside a sandbox; "sandpit-guest interpreter" there serves it on a port.
//
// # Use
//
// A Service has contexts; each has a language, a directory and a kernel. Service.Run runs code in
// one and tells what happens as Events, in order, until an End. Other front ends can call a
// Service themselves, or speak HTTP with Service.Handler as E2B's code interpreter does:
//
//	POST   /execute                {code, context_id | language, env_vars} → lines of JSON, one for each Event
//	POST   /contexts               {language, cwd} → {id, language, cwd}
//	GET    /contexts               → [{id, language, cwd}], the newest last
//	DELETE /contexts/{id}
//	POST   /contexts/{id}/restart
//	GET    /health                 → 200 "OK" when the first kernels can be used, until then 503
//
// Errors are plain text: 400 for a request that makes no sense, 404 for an unknown context, 429 when there
// are too many, 500 for the rest. A run whose client goes away is interrupted.
//
// # Without a port
//
// A Remote, outside, has a Service of its own in a sandbox, which is started as a user and spoken to by its input
// and output, in lines of JSON ("sandpit-guest interpreter -stdio").
//
// # Kernels
//
// Kernels are programs of ours (kernels/) that another program runs: IPython's shell in python3 (or one of ours, where
// there is no IPython), V8's read-eval-print mode in node, bash. Between service and kernel are pipes, inherited as descriptors:
//
//	1, 2  what programs print; after each run a mark, a number that is new for each kernel
//	3     what is to be run: a line of JSON {id, code, language, env, reseed}, or three texts for bash;
//	      an empty line interrupts, where a signal would not be heard
//	4     lines of JSON: ready, count, result, error, done
//	5     the kernel itself
//
// So nothing listens on a port, and nothing is open that could not be saved with the sandbox's memory. A kernel is
// hostile, as the code it runs: lines have a largest size, output is passed on as it is read, and a kernel that breaks the
// rules is killed. Who is interrupted and goes on for Patience is killed, too. When a kernel has ended, the run
// that it was doing says so, and the next one has a new kernel.
package interpreter
