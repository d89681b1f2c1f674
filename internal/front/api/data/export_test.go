package data

import (
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// Patterns returns the patterns of all calls that are served.
func (s *Server) Patterns() []string {
	var mux api.Mux
	s.Register(&mux)
	return mux.Patterns()
}

// Described returns the patterns of all calls that are described.
func Described() (all []string) {
	doc := humago.New(http.NewServeMux(), huma.DefaultConfig("test", "1"))
	Describe(doc)
	for path, item := range doc.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Delete, item.Options, item.Patch} {
			if op != nil {
				all = append(all, op.Method+" "+strings.Replace(path, "/envd/{path}", "/envd/{path...}", 1))
			}
		}
	}
	return all
}
