package data_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/front/api/data"
)

// newJudge knows the description of the calls.
func newJudge(tb testing.TB) routers.Router {
	tb.Helper()
	described := humago.New(http.NewServeMux(), huma.DefaultConfig("test", "1"))
	data.Describe(described)
	text, err := json.Marshal(described.OpenAPI())
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
	return router
}

// judged fails the test if an answer is not as the description says. The guest's own
// answers are not described.
func (r *rig) judged(req *http.Request, a reply) {
	r.Helper()
	described := &http.Request{Method: req.Method, Header: http.Header{}, URL: &url.URL{Path: req.URL.EscapedPath()}}
	route, params, err := r.judge.FindRoute(described)
	if err != nil || strings.Contains(req.URL.Path, "/envd/") || a.status/100 == 3 {
		return
	}
	kind := a.header.Get("Content-Type")
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: described, PathParams: params, Route: route},
		Status:                 a.status, Header: a.header, Body: io.NopCloser(bytes.NewReader([]byte(a.body))),
		// A part of a file is as good as the file.
		Options: &openapi3filter.Options{IncludeResponseStatus: a.status != http.StatusPartialContent, ExcludeResponseBody: !strings.Contains(kind, "json")},
	}
	if a.status == http.StatusRequestedRangeNotSatisfiable || input.Options.ExcludeResponseBody && a.status == http.StatusPartialContent {
		return
	}
	if err := openapi3filter.ValidateResponse(r.Context(), input); err != nil {
		r.Errorf("%s %s: the answer is not as described: %v", req.Method, req.URL, err)
	}
}

// TestDescription describes what is served, and no more.
func TestDescription(t *testing.T) {
	t.Parallel()
	served, described := data.New(data.Options{}).Patterns(), data.Described()
	slices.Sort(served)
	slices.Sort(described)
	if diff := cmp.Diff(served, described); diff != "" {
		t.Errorf("served (-) and described (+):\n%s", diff)
	}
	newJudge(t)
}
