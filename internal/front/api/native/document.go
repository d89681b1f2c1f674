package native

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

//go:embed page.html page.css
var pageFiles embed.FS

// serveDocument serves the description of the API, as it is at the first request: as
// OpenAPI 3.1, as 3.0 for generators that support only that, and as a page.
func serveDocument(mux api.Router, doc *huma.OpenAPI) {
	serve := func(path, kind, policy string, make func() ([]byte, error)) {
		once := sync.OnceValues(make)
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			text, err := once()
			if err != nil {
				api.WriteError(w, r, sandpit.Errorf(sandpit.Internal, "describe the API: %w", err))
				return
			}
			h := w.Header()
			h.Set("Content-Type", kind)
			h.Set("Cache-Control", "no-cache")
			if policy != "" {
				h.Set("Content-Security-Policy", policy)
			}
			_, _ = w.Write(text) // fails only if the client disconnected
		})
	}
	serve(pathDocument, "application/json", "", func() ([]byte, error) { return json.MarshalIndent(doc, "", "  ") })
	serve(pathDocument30, "application/json", "", doc.Downgrade)
	serve(pathPage, "text/html; charset=utf-8", pagePolicy(), func() ([]byte, error) { return renderPage(doc) })
}

// pagePolicy lets a browser do nothing with the page but show it, in its own style.
func pagePolicy() string {
	style, err := pageFiles.ReadFile("page.css")
	if err != nil {
		return "default-src 'none'" // embedded files are always there
	}
	sum := sha256.Sum256(style)
	return "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src 'sha256-" +
		base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// section is the operations of one tag.
type section struct {
	Name       string
	Operations []*huma.Operation
}

// renderPage returns the description as an HTML page.
func renderPage(doc *huma.OpenAPI) ([]byte, error) {
	style, err := pageFiles.ReadFile("page.css")
	if err != nil {
		return nil, err
	}
	funcs := template.FuncMap{"kind": describeKind, "anchor": schemaAnchor, "text": describeValue}
	t, err := template.New("page.html").Funcs(funcs).ParseFS(pageFiles, "page.html")
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, map[string]any{
		"Doc": doc, "Sections": groupOperations(doc), "Schemas": doc.Components.Schemas.Map(),
		"Style": template.CSS(style), //nolint:gosec // a file of ours
	})
	return out.Bytes(), err
}

// groupOperations returns the operations by their tags, sorted.
func groupOperations(doc *huma.OpenAPI) []*section {
	byName := make(map[string]*section)
	for _, item := range doc.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Head, item.Post, item.Put, item.Patch, item.Delete} {
			if op == nil {
				continue
			}
			name := "other"
			if len(op.Tags) > 0 {
				name = op.Tags[0]
			}
			if byName[name] == nil {
				byName[name] = &section{Name: name}
			}
			byName[name].Operations = append(byName[name].Operations, op)
		}
	}
	list := make([]*section, 0, len(byName))
	for _, s := range byName {
		slices.SortFunc(s.Operations, func(a, b *huma.Operation) int {
			return strings.Compare(a.Path+" "+a.Method, b.Path+" "+b.Method)
		})
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *section) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// schemaAnchor returns the anchor of the schema that s or its items refer to, or "".
func schemaAnchor(s *huma.Schema) string {
	for s != nil && s.Ref == "" {
		s = s.Items
	}
	if s == nil {
		return ""
	}
	return s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
}

// describeKind names the type of a value.
func describeKind(s *huma.Schema) string {
	switch {
	case s == nil:
		return ""
	case s.Ref != "":
		return schemaAnchor(s)
	case s.Type == huma.TypeArray:
		return "list of " + describeKind(s.Items)
	case s.Format != "":
		return s.Type + " (" + s.Format + ")"
	default:
		return s.Type
	}
}

// describeValue returns the description of a value and its allowed values.
func describeValue(s *huma.Schema) string {
	if s == nil {
		return ""
	}
	words := []string{s.Description}
	if len(s.Enum) > 0 {
		var list []string
		for _, v := range s.Enum {
			if word, ok := v.(string); ok {
				list = append(list, word)
			}
		}
		words = append(words, "One of "+strings.Join(list, ", ")+".")
	}
	return strings.TrimSpace(strings.Join(words, " "))
}
