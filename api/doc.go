// Package api has the documents of sandpit's own API: what the Go client (package client) returns
// and the server sends as JSON, and the request for a sandbox.
//
// In JSON, durations are numbers of seconds, sizes are bytes, times are RFC 3339.
package api
