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

// operation is one call: its description and its handler.
type operation struct {
	id, summary string
	serve       func(*Server, context.Context, *call) error
	method      string
	path        string // below base
	params      []*huma.Param
	body        any    // a value of the JSON body's type; nil for none
	content     string // the media type of a body that is not JSON
	status      int
	result      any    // a value of the JSON response's type; nil for none
	accepted    any    // a value of the type of a response with status 202; nil for none
	media       string // the media type of a response that is not, or not only, JSON
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

// toHuma returns the description of the call.
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
	response := &huma.Response{Description: http.StatusText(o.status), Content: map[string]*huma.MediaType{}}
	if o.result != nil {
		response.Content = jsonContent(schemas, "application/json", o.result)
	}
	if o.media != "" {
		maps.Copy(response.Content, plainContent(o.media))
	}
	op.Responses[strconv.Itoa(o.status)] = response
	if o.accepted != nil {
		op.Responses[strconv.Itoa(http.StatusAccepted)] = &huma.Response{
			Description: http.StatusText(http.StatusAccepted), Content: jsonContent(schemas, "application/json", o.accepted),
		}
	}
	return op
}

// tagOf returns the tag of a call.
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

// pathParams describes the wildcards of a path.
func pathParams(path string) (params []*huma.Param) {
	words := map[string]string{"id": "ID of the sandbox.", "cid": "ID of the command.", "sid": "ID of the session.", "jid": "ID of the job.", "path": "The path in the guest's protocol."}
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

// fileParams returns the parameters of a call on a file, followed by others.
func fileParams(others ...*huma.Param) []*huma.Param {
	path := textParam("path", "Path of the file. Relative paths start at the user's home directory.")
	path.Required = true
	return append([]*huma.Param{path, textParam("user", "The user of the home directory and owner of new files. Default: the sandbox's user.")}, others...)
}
