package api

import (
	"net/http"
	"slices"
)

// Router accepts the routes of the front ends. http.ServeMux and Mux implement it.
type Router interface {
	http.Handler
	Handle(pattern string, handler http.Handler)
	HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request))
}

// Mux is an http.ServeMux that records its patterns, so that tests can go through all routes.
// Routes must be added by one goroutine before it serves.
type Mux struct {
	http.ServeMux

	patterns []string
}

// Handle adds a route.
func (m *Mux) Handle(pattern string, handler http.Handler) {
	m.patterns = append(m.patterns, pattern)
	m.ServeMux.Handle(pattern, handler)
}

// HandleFunc adds a route.
func (m *Mux) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	m.Handle(pattern, http.HandlerFunc(handler))
}

// Patterns returns the patterns of all routes, sorted.
func (m *Mux) Patterns() []string { return slices.Sorted(slices.Values(m.patterns)) }
