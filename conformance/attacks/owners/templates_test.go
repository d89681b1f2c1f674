package owners_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func blocksOf(info os.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}

func runProgram(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// e2bReads runs a command in a new sandbox that E2B's clients would get of a template.
func (p party) e2bReads(t *testing.T, template, command string) string {
	t.Helper()
	r := p.call(t, http.MethodPost, "/sandboxes", map[string]any{"templateID": template, "timeout": 300})
	if r.status >= 300 {
		return fmt.Sprint(r.status, " ", string(r.body))
	}
	var s struct {
		ID string `json:"sandboxID"`
	}
	r.decode(t, &s)
	defer p.call(t, http.MethodDelete, "/sandboxes/"+s.ID, nil)
	out, _ := p.run(t, s.ID, command)
	return strings.TrimSpace(out)
}

// TestTemplateNamesAreNotTaken has alice publish templates under names that mean something
// to others: of the administrator's cache, of the configuration, and unknown ones.
func TestTemplateNamesAreNotTaken(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{config: "[e2b]\ntemplates = { \"code-interpreter-v1\" = \"template:tools\", other = \"template:helper\" }\n"})
	dir := filepath.Join(l.dir, "tools")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("from = %q\n[[step]]\nrun = \"echo ADMIN > /who\"\n", l.image)
	if err := os.WriteFile(filepath.Join(dir, "sandpit.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// Into the cache of the machine, and not by the server, which would keep it as its owner's.
	l.commandWith(t, []string{"SANDPIT_SERVER_SOCKET=none"}, "template", "build", "-t", "tools", dir)
	for _, name := range []string{"tools", "helper"} {
		l.alice.built(t, name, l.image, "echo EVIL > /who")
		l.alice.must(t, http.MethodPatch, "/v1/templates/"+name, map[string]any{"public": true})
	}
	for _, p := range []party{l.bob, l.admin, l.socket} {
		if got := p.reads(t, "template:tools", "cat /who"); got != "ADMIN" {
			t.Errorf("%s's template:tools is %q", p.name, got)
		}
		if r, id := p.tryCreate(t, "template:helper"); id != "" || r.status != http.StatusNotFound {
			t.Errorf("%s's template:helper: %d %s", p.name, r.status, r.body)
		}
		if got := p.e2bReads(t, "helper", "cat /who"); !strings.HasPrefix(got, "404 ") {
			t.Errorf("E2B's helper of %s is %q", p.name, got)
		}
	}
	for template, want := range map[string]string{"code-interpreter-v1": "ADMIN", "tools": "ADMIN", "other": "404 "} {
		if got := l.bob.e2bReads(t, template, "cat /who"); !strings.HasPrefix(got, want) {
			t.Errorf("E2B's %s is %q, want %q", template, got, want)
		}
	}
	if status, message, _ := l.bob.tryBuild(t, "mine", map[string]any{"recipe": recipeOf("template:helper", "true")}); status == "ready" {
		t.Errorf("bob's build from template:helper: %s", message)
	}
	status, message, id := l.bob.tryBuild(t, "mine", map[string]any{"recipe": recipeOf("template:tools", "true")})
	if status != "ready" {
		t.Fatalf("bob's build from template:tools: %s", message)
	}
	if got := l.bob.reads(t, "template:"+id, "cat /who"); got != "ADMIN" {
		t.Errorf("bob's build from template:tools has %q", got)
	}
	// A caller that wants alice's says so.
	if got := l.bob.reads(t, "template:alice/helper", "cat /who"); got != "EVIL" {
		t.Errorf("template:alice/helper is %q", got)
	}
	if got := l.bob.e2bReads(t, "alice/helper", "cat /who"); got != "EVIL" {
		t.Errorf("E2B's alice/helper is %q", got)
	}
	// What an administrator publishes is for all owners without a template of that name.
	l.admin.built(t, "helper", l.image, "echo PUBLISHED > /who")
	l.admin.must(t, http.MethodPatch, "/v1/templates/helper", map[string]any{"public": true})
	for who, want := range map[string]string{"bob": "PUBLISHED", "alice": "EVIL"} {
		p := map[string]party{"bob": l.bob, "alice": l.alice}[who]
		if got := p.reads(t, "template:helper", "cat /who"); got != want {
			t.Errorf("%s's template:helper is %q, want %q", who, got, want)
		}
		if got := p.e2bReads(t, "other", "cat /who"); got != "PUBLISHED" {
			t.Errorf("what the configuration calls helper is %q to %s", got, who)
		}
	}
}

// TestTemplatesCannotBeGuessed asks for a private template of bob's in every way, and for
// one that is not there. Both look alike.
func TestTemplatesCannotBeGuessed(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{})
	build := l.bob.built(t, "secretproject", l.image, "true")
	var bobs struct {
		ID string `json:"id"`
	}
	l.bob.must(t, http.MethodGet, "/v1/templates/secretproject", nil).decode(t, &bobs)
	names := map[string]string{ // by what is not there
		"nothing": "secretproject", "bob/nothing": "bob/secretproject", "nothing:v1": "secretproject:v1",
		"tmpl" + strings.Repeat("a", 16): bobs.ID, "bld" + strings.Repeat("a", 16): build,
	}
	create := func(ref string) map[string]any {
		return map[string]any{"spec": map[string]any{"image": "template:" + ref}}
	}
	e2b := func(ref string) map[string]any { return map[string]any{"templateID": ref} }
	none := func(string) map[string]any { return nil }
	public := func(string) map[string]any { return map[string]any{"public": true} }
	for _, way := range []struct {
		method, path string
		body         func(ref string) map[string]any
	}{
		{http.MethodGet, "/v1/templates/%s", none},
		{http.MethodGet, "/v1/templates/%s/builds", none},
		{http.MethodPatch, "/v1/templates/%s", public},
		{http.MethodDelete, "/v1/templates/%s", none},
		{http.MethodPost, "/v1/templates/%s/tags", func(string) map[string]any { return map[string]any{"tags": []string{"x"}} }},
		{http.MethodDelete, "/v1/templates/%s/tags/default", none},
		{http.MethodGet, "/v1/builds/%s", none},
		{http.MethodGet, "/v1/builds/%s/log", none},
		{http.MethodPost, "/v1/sandboxes", create},
		{http.MethodGet, "/templates/aliases/%s", none},
		{http.MethodGet, "/templates/%s", none},
		{http.MethodPatch, "/templates/%s", public},
		{http.MethodPatch, "/v2/templates/%s", public},
		{http.MethodDelete, "/templates/%s", none},
		{http.MethodGet, "/templates/%s/tags", none},
		{http.MethodPost, "/templates/tags", func(ref string) map[string]any { return map[string]any{"target": ref, "tags": []string{"x"}} }},
		{http.MethodDelete, "/templates/tags", func(ref string) map[string]any { return map[string]any{"name": ref, "tags": []string{"default"}} }},
		{http.MethodPost, "/sandboxes", e2b},
	} {
		for unknown, private := range names {
			ask := func(ref string) response {
				path := way.path
				if strings.Contains(path, "%s") {
					path = fmt.Sprintf(path, url.PathEscape(ref))
				}
				var body any
				if b := way.body(ref); b != nil {
					body = b
				}
				return l.alice.call(t, way.method, path, body)
			}
			missing, there := ask(unknown), ask(private)
			if there.status < 400 || there.status != missing.status || withoutRequest(there, private) != withoutRequest(missing, unknown) {
				t.Errorf("%s %s: %s: %d %s\n%s: %d %s", way.method, way.path, private, there.status, there.body, unknown, missing.status, missing.body)
			}
		}
	}
	for _, from := range []string{"secretproject", "bob/secretproject", build, bobs.ID} {
		if status, message, _ := l.alice.tryBuild(t, "mine", map[string]any{"recipe": recipeOf("template:"+from, "true")}); status == "ready" {
			t.Errorf("alice's build from bob's %s: %s", from, message)
		}
	}
	l.bob.must(t, http.MethodGet, "/v1/templates/secretproject", nil)
}

// TestBuildStepsAreTheirOwners has alice carry out a step before bob does the same one: with
// another value of a secret, and with too little disk. Bob gets his own result.
func TestBuildStepsAreTheirOwners(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{})
	secret := func(value string) map[string]any {
		return map[string]any{
			"recipe": map[string]any{"from": l.image, "steps": []any{map[string]any{
				"run": []string{"/bin/sh", "-c", `echo "from ${INDEX_URL%%.example*}" > /lib.txt`}, "secrets": []string{"INDEX_URL"},
			}}},
			"secrets": map[string]string{"INDEX_URL": value},
		}
	}
	for _, p := range []party{l.alice, l.bob} {
		if status, message, _ := p.tryBuild(t, "secret", secret("https://"+p.name+".example/simple")); status != "ready" {
			t.Fatal(message)
		}
	}
	if got := l.bob.reads(t, "template:secret", "cat /lib.txt"); got != "from https://bob" {
		t.Errorf("bob's template is built %q", got)
	}
	if status, message, _ := l.bob.tryBuild(t, "secret", secret("https://bob2.example/simple")); status != "ready" {
		t.Fatal(message)
	}
	if got := l.bob.reads(t, "template:secret", "cat /lib.txt"); got != "from https://bob2" {
		t.Errorf("with another value bob's template is built %q", got)
	}
	small := recipeOf(l.image, "dd if=/dev/zero of=/payload bs=1M count=8; echo verified > /verify; true")
	small["build"] = map[string]any{"resources": map[string]any{"disk": 1 << 20}}
	if status, message, _ := l.alice.tryBuild(t, "disk", map[string]any{"recipe": small}); status != "ready" {
		t.Fatal(message)
	}
	l.bob.built(t, "disk", l.image, "dd if=/dev/zero of=/payload bs=1M count=8; echo verified > /verify; true")
	if got := l.bob.reads(t, "template:disk", "wc -c < /payload; cat /verify"); got != "8388608\nverified" {
		t.Errorf("bob's payload and verification are %q", got)
	}
}
