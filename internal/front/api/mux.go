package api

import (
	"net/http"
	"slices"
)

// Router is what the front ends add their routes to. http.ServeMux and Mux are routers.
type Router interface {
	http.Handler
	Handle(pattern string, handler http.Handler)
	HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request))
}

// Mux is an http.ServeMux that knows its patterns, so that a test can go through all
// routes there are. It is for one goroutine until it serves.
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
