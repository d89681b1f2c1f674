// Package api is the edge of the server, in front of all APIs. It listens, authenticates
// clients, checks what sandboxes may use of the machine, limits requests and connections,
// and converts errors to responses. The packages below it define the calls.
package api
