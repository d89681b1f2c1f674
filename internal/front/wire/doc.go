// Package wire is what sandpit's own API sends and takes: the bodies, headers and
// paths that the server (internal/front/api/native) and the Go client (client) share.
//
// Durations are numbers of seconds, sizes are bytes, times are RFC 3339. A field
// that is left out means the default stated with it.
package wire
