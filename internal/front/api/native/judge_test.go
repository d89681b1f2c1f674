package native_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// judge compares responses with the description of the API, with an independent library.
type judge struct {
	router routers.Router
}

func newJudge(tb testing.TB, described *huma.OpenAPI) *judge {
	tb.Helper()
	text, err := json.Marshal(described)
	if err != nil {
		tb.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		tb.Fatal(err)
	}
	if err := doc.Validate(tb.Context()); err != nil {
		tb.Fatalf("the description is not valid: %v", err)
	}
	router, err := legacy.NewRouter(doc)
	if err != nil {
		tb.Fatal(err)
	}
	return &judge{router}
}

// check fails the test if an answer is not as the description says. What is not
// described may be refused only.
func (j *judge) check(tb testing.TB, a ask, g got) {
	tb.Helper()
	req := &http.Request{Method: a.method, Header: http.Header{}, URL: &url.URL{}}
	var err error
	if req.URL, err = url.Parse(a.path); err != nil {
		tb.Fatal(err)
	}
	route, params, err := j.router.FindRoute(req)
	if err != nil {
		if g.status < 400 && !strings.HasPrefix(a.path, "/docs") && !strings.HasPrefix(a.path, "/openapi") {
			tb.Errorf("%s %s: %d, and the description does not know it", a.method, a.path, g.status)
		}
		return
	}
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route},
		Status:                 g.status, Header: g.header, Body: io.NopCloser(bytes.NewReader(g.body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, ExcludeResponseBody: g.header.Get("Content-Type") == api.ContentTypeStream},
	}
	if err := openapi3filter.ValidateResponse(tb.Context(), input); err != nil {
		tb.Errorf("%s %s: the answer is not as described: %v", a.method, a.path, err)
	}
}
