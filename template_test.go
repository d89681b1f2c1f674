package sandpit_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func TestTemplateRef(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]sandpit.TemplateRef{
		"tools":               {Name: "tools"},
		"tools:v1":            {Name: "tools", Tag: "v1"},
		"alice/tools":         {Owner: "alice", Name: "tools"},
		"alice@x.org/tools:v": {Owner: "alice@x.org", Name: "tools", Tag: "v"},
		"a/b/tools":           {Owner: "a/b", Name: "tools"},
		"/tools":              {Name: "/tools"},
		"alice/":              {Owner: "alice"},
		"":                    {},
	} {
		if got := sandpit.ParseTemplateRef(text); got != want {
			t.Errorf("%q is %+v, want %+v", text, got, want)
		}
	}
	for text, want := range map[string]bool{
		"tools": false, "tmplaaaaaaaaaaaaaaaa": true, "bldaaaaaaaaaaaaaaaa:v1": true, "tmplAAAAAAAAAAAAAAAA": false,
	} {
		if got := sandpit.ParseTemplateRef(text).IsID(); got != want {
			t.Errorf("%q names an ID: %v, want %v", text, got, want)
		}
	}
}

// FuzzTemplateRef reads references: what they are written as means the same.
func FuzzTemplateRef(f *testing.F) {
	for _, text := range []string{"tools", "alice/tools:v1", "/", ":", "a/b:c/d:e", "//x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := sandpit.ParseTemplateRef(text)
		if again := sandpit.ParseTemplateRef(r.String()); r.Name != "" && again != r {
			t.Errorf("%q is %+v, and written %q, which is %+v", text, r, r.String(), again)
		}
	})
}
