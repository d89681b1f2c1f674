// Package queue keeps operations on sandboxes that are to be done later, and
// does them: delayed, retried, and by one worker at a time even where several
// servers share the queue.
//
// It is our own code because asynq, machinery, River and taskq need Redis or
// PostgreSQL: none can keep its messages in the one SQLite file of a server.
//
// Due times and claims are compared with the callers' clocks. The clocks of
// servers that share a topic must agree to well within Visibility of a worker.
package queue
