// Package api has the documents of sandpit's own API that clients read: what the Go client
// (package client) returns and the server sends as JSON.
//
// Durations are numbers of seconds, sizes are bytes, times are RFC 3339.
package api
