package mcp

import (
	"encoding/json"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// TestStructured has results of every kind: clients take nothing but an object.
func TestStructured(t *testing.T) {
	t.Parallel()
	problem := &tool.Problem{Code: sandpit.NotFound, Message: "none"}
	for name, tc := range map[string]struct {
		result tool.Result
		want   string
	}{
		"nothing": {tool.Result{}, `null`},
		"object":  {tool.Result{Data: struct{ A int }{1}}, `{"A":1}`},
		"list":    {tool.Result{Data: []int{1, 2}}, `{"result":[1,2]}`},
		"text":    {tool.Result{Data: "a"}, `{"result":"a"}`},
		"problem": {tool.Result{Problem: problem}, `{"problem":{"code":"not_found","message":"none"}}`},
		"both":    {tool.Result{Problem: problem, Data: json.RawMessage(`{"a":1}`)}, `{"a":1}`},
		"no JSON": {tool.Result{Data: make(chan int)}, `null`},
	} {
		if got, err := json.Marshal(structuredContent(tc.result)); err != nil || string(got) != tc.want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, tc.want)
		}
	}
}
