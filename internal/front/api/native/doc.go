// Package native is sandpit's own API: what a server does with sandboxes and with
// itself, as REST that describes itself (OpenAPI 3.1). It puts requests into the
// words of the manager and answers into those of internal/front/wire, and decides nothing
// but who may ask for what.
package native
