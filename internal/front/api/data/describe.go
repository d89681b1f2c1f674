package data

import (
	"context"
	"maps"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// operation is one call: how it is described and what serves it.
type operation struct {
	id, summary string
	serve       func(*Server, context.Context, *call) error
	method      string
	path        string // below base
	params      []*huma.Param
	body        any    // a value of the JSON body's type; nil for none
	content     string // the media type of a body that is no JSON
	status      int
	answer      any    // a value of the JSON answer's type; nil for none
	accepted    any    // a value of the type of an answer with status 202; nil for none
	answers     string // the media types of an answer that is no JSON, or is something else besides
}

// pattern is the pattern of the call for a mux. GET includes HEAD.
func (o operation) pattern() string { return o.method + " " + base + o.path }

// Describe adds the calls to the description of the API.
func Describe(doc huma.API) {
	d := doc.OpenAPI()
	for _, o := range allOperations() {
		d.AddOperation(o.toHuma(d.Components.Schemas))
	}
}

func (o operation) toHuma(schemas huma.Registry) *huma.Operation {
	path := strings.Replace(base+o.path, "{path...}", "{path}", 1)
	op := &huma.Operation{
		Method: o.method, Path: path, OperationID: o.id, Summary: o.summary, Tags: []string{tagOf(o.path)},
		Parameters: append(pathParams(path), o.params...),
		Responses: map[string]*huma.Response{
			"default": {Description: "A failure.", Content: jsonContent(schemas, wire.ContentTypeProblem, wire.Problem{})},
		},
	}
	switch {
	case o.body != nil:
		op.RequestBody = &huma.RequestBody{Required: true, Content: jsonContent(schemas, "application/json", o.body)}
	case o.content != "":
		op.RequestBody = &huma.RequestBody{Content: plainContent(o.content)}
	}
	answer := &huma.Response{Description: http.StatusText(o.status), Content: map[string]*huma.MediaType{}}
	if o.answer != nil {
		answer.Content = jsonContent(schemas, "application/json", o.answer)
	}
	if o.answers != "" {
		maps.Copy(answer.Content, plainContent(o.answers))
	}
	op.Responses[strconv.Itoa(o.status)] = answer
	if o.accepted != nil {
		op.Responses[strconv.Itoa(http.StatusAccepted)] = &huma.Response{
			Description: http.StatusText(http.StatusAccepted), Content: jsonContent(schemas, "application/json", o.accepted),
		}
	}
	return op
}

// tagOf is the group that a call is in.
func tagOf(path string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "run":
		return "commands"
	case "tree":
		return "files"
	case "terminal":
		return "sessions"
	}
	return first
}

func jsonContent(schemas huma.Registry, kind string, value any) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{kind: {Schema: schemas.Schema(reflect.TypeOf(value), true, "")}}
}

func plainContent(kind string) map[string]*huma.MediaType {
	schema := &huma.Schema{Type: huma.TypeString}
	if kind != api.ContentTypeStream {
		schema.Format = "binary"
	}
	return map[string]*huma.MediaType{kind: {Schema: schema}}
}

// pathParams describes what stands in braces in a path.
func pathParams(path string) (params []*huma.Param) {
	words := map[string]string{"id": "The sandbox.", "cid": "The command.", "sid": "The session.", "jid": "The job.", "path": "The path of the guest's call."}
	for part := range strings.SplitSeq(path, "/") {
		name, ok := strings.CutPrefix(part, "{")
		if name = strings.TrimSuffix(name, "}"); ok {
			params = append(params, &huma.Param{Name: name, In: "path", Required: true, Description: words[name], Schema: &huma.Schema{Type: huma.TypeString}})
		}
	}
	return params
}

func textParam(name, words string) *huma.Param {
	return &huma.Param{Name: name, In: "query", Description: words, Schema: &huma.Schema{Type: huma.TypeString}}
}

func numberParam(name, words string, least float64) *huma.Param {
	return &huma.Param{Name: name, In: "query", Description: words, Schema: &huma.Schema{Type: huma.TypeInteger, Format: "int64", Minimum: &least}}
}

// fileParams are the parameters of a call on a file.
func fileParams(others ...*huma.Param) []*huma.Param {
	path := textParam("path", "The file. Relative paths start at the user's home.")
	path.Required = true
	return append([]*huma.Param{path, textParam("user", "Whose home it is, and whose file it becomes. Default: the sandbox's user.")}, others...)
}
