// Package wire has the bodies, headers and paths of sandpit's own API, which the server
// (internal/front/api/native) and the Go client (client) share.
//
// Durations are numbers of seconds, sizes are bytes, times are RFC 3339. A missing field
// has the default stated with it. The doc tag of a field is its documentation, here and in
// the OpenAPI description.
package wire
