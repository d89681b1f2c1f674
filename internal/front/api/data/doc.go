// Package data serves the calls on commands, files and terminals in sandboxes and on the
// guest's own protocol. It uses plain HTTP handlers, because most calls are streams.
//
// Every call gets its sandbox from api.Use and holds it, so that a sandbox with an active
// call is not idle. When the sandbox stops or the server ends, the call ends with the
// reason; a response that has begun is cut, so that it does not look complete. When the
// client disconnects, its call is canceled.
//
// Output of a sandbox is untrusted: browsers do not run responses, only known headers of a
// guest are forwarded, and everything in memory has a limit.
package data
