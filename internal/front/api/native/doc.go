// Package native is sandpit's own REST API, with its OpenAPI 3.1 description. It converts
// requests to those of the manager and results to the types of internal/front/wire, and
// checks what clients may request. There is one type of handlers for each resource.
package native
