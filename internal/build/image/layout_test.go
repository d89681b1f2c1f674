package image

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// saved are the files of an image on its way, by path.
type saved map[string][]byte

func (s saved) blob(mediaType string, data []byte) map[string]any {
	d := described(mediaType, data)
	s["blobs/sha256/"+strings.TrimPrefix(d["digest"].(string), "sha256:")] = data
	return d
}

// ociSaved is an OCI layout with one image under each name.
func ociSaved(t *testing.T, names ...string) saved {
	t.Helper()
	s := saved{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	var list []any
	for _, name := range names {
		p := simple(t)
		p.layers = append(p.layers, zstdOf(t, archiveOf(t, file("name", name))))
		config := imageConfig(t, p)
		m := map[string]any{"schemaVersion": 2, "config": s.blob(typeConfig, config), "layers": []any{}}
		for _, l := range p.layers {
			m["layers"] = append(m["layers"].([]any), s.blob(typeLayer, l))
		}
		d := s.blob(typeManifest, toJSON(t, m))
		if name != "" {
			d["annotations"] = map[string]string{ociName: name}
		}
		list = append(list, d)
	}
	s["index.json"] = toJSON(t, map[string]any{"schemaVersion": 2, "manifests": list})
	return s
}

// dockerSaved is what docker save writes: with a link for a layer that is there
// twice.
func dockerSaved(t *testing.T, tags ...string) saved {
	t.Helper()
	layer := archiveOf(t, file("a", "1"))
	second := archiveOf(t, file(".wh.a", ""), file("b", "2"))
	config := imageConfig(t, parts{layers: [][]byte{layer, layer, second}, config: map[string]any{"Cmd": []string{"sh"}}})
	name := strings.TrimPrefix(sha256Of(config), "sha256:") + ".json"
	return saved{
		name: config, "one/layer.tar": layer, "two/layer.tar -> ../one/layer.tar": nil, "three/layer.tar": zipped(t, second),
		"manifest.json": toJSON(t, []any{map[string]any{
			"Config": name, "RepoTags": tags, "Layers": []string{"one/layer.tar", "two/layer.tar", "three/layer.tar"},
		}}),
	}
}

func (s saved) tar(t *testing.T) []byte {
	t.Helper()
	var items []item
	for path, data := range s {
		if name, target, ok := strings.Cut(path, " -> "); ok {
			items = append(items, link('2', name, target))
			continue
		}
		items = append(items, file(path, string(data)))
	}
	return archiveOf(t, items...)
}

func (s saved) write(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for path, data := range s {
		write(t, filepath.Join(dir, path), string(data))
	}
	return dir
}

func TestLayouts(t *testing.T) {
	t.Parallel()
	one, several := ociSaved(t, ""), ociSaved(t, "v1", "docker.io/library/tool:v2")
	dir := t.TempDir()
	inFile := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, data, 0o644))
		return path
	}
	docker := dockerSaved(t, "tool:v1")
	for name, tc := range map[string]struct {
		ref  string
		want map[string]string
	}{
		"a directory":            {one.write(t), map[string]string{"etc/issue": "above", "name": ""}},
		"a directory with tag":   {several.write(t) + ":v1", map[string]string{"etc/issue": "above", "name": "v1"}},
		"a part of a name":       {several.write(t) + ":v2", map[string]string{"name": "docker.io/library/tool:v2"}},
		"a tar":                  {inFile("one.tar", one.tar(t)), map[string]string{"etc/issue": "above"}},
		"a tar with tag":         {inFile("several.tar", several.tar(t)) + ":v1", map[string]string{"name": "v1"}},
		"a packed tar":           {inFile("one.tar.gz", zipped(t, one.tar(t))), map[string]string{"etc/issue": "above"}},
		"packed with zstd":       {inFile("one.tar.zst", zstdOf(t, one.tar(t))), map[string]string{"etc/issue": "above"}},
		"docker save":            {inFile("docker.tar", docker.tar(t)), map[string]string{"b": "2"}},
		"docker save, with tag":  {inFile("docker2.tar", docker.tar(t)) + ":v1", map[string]string{"b": "2"}},
		"files packed with zstd": {inFile("files.tar.zst", zstdOf(t, archiveOf(t, file("a", "1")))), map[string]string{"a": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			root := resolved(t, s, sandpit.Image(tc.ref))
			got := all(t, root.Path)
			for name, want := range tc.want {
				if got[name] != want {
					t.Errorf("%s: %q, want %q", name, got[name], want)
				}
			}
			if _, there := got["gone"]; there {
				t.Error("a hidden file is there")
			}
			read := 0
			again, err := s.Resolve(t.Context(), sandpit.Image(tc.ref), func(int64, int64) { read++ })
			must(t, err, again.File.Close())
			if again.Path != root.Path || read > 0 {
				t.Errorf("converted again to %s", again.Path)
			}
			if strings.HasPrefix(name, "docker") && cmp.Diff([]string{"sh"}, root.Cmd) != "" {
				t.Errorf("command %q", root.Cmd)
			}
			expectFiles(t, s, imageSuffix, indexSuffix)
		})
	}
}

func TestHostileLayouts(t *testing.T) {
	t.Parallel()
	change := func(s saved, path string, f func(string) string) saved {
		s[path] = []byte(f(string(s[path])))
		return s
	}
	set := func(s saved, path, text string) saved { return change(s, path, func(string) string { return text }) }
	config := func(s saved) string {
		for path := range s {
			if strings.HasSuffix(path, ".json") && path != "manifest.json" {
				return path
			}
		}
		return ""
	}
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "secret")
	for name, tc := range map[string]struct {
		files saved
		want  sandpit.Code
		text  string
		tag   string
	}{
		"no image":             {set(ociSaved(t, ""), "index.json", `{"manifests":[]}`), sandpit.Unsupported, "is not for", ""},
		"no json":              {set(ociSaved(t, ""), "index.json", `x`), sandpit.Invalid, "invalid JSON", ""},
		"huge index":           {set(ociSaved(t, ""), "index.json", strings.Repeat(" ", maxDocument+1)), sandpit.Exhausted, "bytes", ""},
		"path for a digest":    {set(ociSaved(t, ""), "index.json", `{"manifests":[{"digest":"sha256:../../../../etc/passwd","size":1}]}`), sandpit.Invalid, "not a digest", ""},
		"negative size":        {set(ociSaved(t, ""), "index.json", `{"manifests":[{"digest":"`+sha256Of(nil)+`","size":-1}]}`), sandpit.Invalid, "size of -1", ""},
		"missing blob":         {set(ociSaved(t, ""), "index.json", `{"manifests":[{"digest":"`+sha256Of(nil)+`","size":1}]}`), sandpit.Invalid, "missing", ""},
		"several":              {ociSaved(t, "a", "b"), sandpit.Invalid, "2 images", ""},
		"no such tag":          {ociSaved(t, "a", "b"), sandpit.NotFound, "no image has the tag", "c"},
		"docker: no list":      {set(dockerSaved(t), "manifest.json", `{}`), sandpit.Invalid, "docker save", ""},
		"docker: out of it":    {change(dockerSaved(t, "x:y"), "manifest.json", func(s string) string { return strings.Replace(s, "three/layer.tar", "../../etc/passwd", 1) }), sandpit.NotFound, "", ""},
		"docker: other layer":  {set(dockerSaved(t, "x:y"), "one/layer.tar", string(archiveOf(t, file("evil", "")))), sandpit.Unavailable, "wrong digest", ""},
		"docker: fewer layers": {change(dockerSaved(t, "x:y"), "manifest.json", func(s string) string { return strings.Replace(s, `"one/layer.tar",`, "", 1) }), sandpit.Invalid, "layers", ""},
		"docker: bad config":   {set(dockerSaved(t, "x:y"), config(dockerSaved(t, "x:y")), "[]"), sandpit.Invalid, "configuration", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "x.tar")
			must(t, os.WriteFile(path, tc.files.tar(t), 0o644))
			refs := []string{path}
			if tc.files["oci-layout"] != nil {
				refs = append(refs, tc.files.write(t))
			}
			for _, ref := range refs {
				s := newStore(t)
				if tc.tag != "" {
					ref += ":" + tc.tag
				}
				_, err := s.Resolve(t.Context(), sandpit.Image(ref), nil)
				if sandpit.CodeOf(err) != tc.want || !strings.Contains(err.Error(), tc.text) {
					t.Errorf("%s: %q %v, want %q with %q", ref, sandpit.CodeOf(err), err, tc.want, tc.text)
				}
				expectFiles(t, s)
			}
		})
	}
	// A link out of the directory is not followed.
	s := ociSaved(t, "")
	dir := s.write(t)
	for path := range s {
		if strings.HasPrefix(path, "blobs/") {
			must(t, os.Remove(filepath.Join(dir, path)), os.Symlink(secret, filepath.Join(dir, path)))
		}
	}
	if _, err := newStore(t).Resolve(t.Context(), sandpit.Image(dir), nil); err == nil || strings.Contains(err.Error(), "digest") {
		t.Errorf("links out of the directory: %v", err)
	}
}

func TestImport(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.o.Pull = PullNever
	dir := t.TempDir()
	path := filepath.Join(dir, "docker.tar")
	must(t, os.WriteFile(path, dockerSaved(t, "tool:v1", "ghcr.io/a/b:c").tar(t), 0o644))
	list, err := s.Import(t.Context(), path, "", nil)
	must(t, err)
	if len(list) != 2 || list[0].Name != "tool:v1" || list[1].Name != "ghcr.io/a/b:c" {
		t.Errorf("imported %+v", list)
	}
	first := resolved(t, s, "tool:v1")
	if second := resolved(t, s, "ghcr.io/a/b:c"); second.Path != first.Path {
		t.Error("two names, two images")
	}
	// Again, from a stream, under another name.
	list, err = s.ImportFrom(t.Context(), bytes.NewReader(zipped(t, dockerSaved(t).tar(t))), "mine", nil)
	must(t, err)
	if len(list) != 1 || list[0].Name != "mine:latest" || resolved(t, s, "mine").Path != first.Path {
		t.Errorf("imported %+v", list)
	}
	rootfs := filepath.Join(dir, "rootfs")
	write(t, filepath.Join(rootfs, "etc/issue"), "files")
	list, err = s.Import(t.Context(), rootfs, "files:1", nil)
	must(t, err)
	if len(list) != 1 || all(t, resolved(t, s, "files:1").Path)["etc/issue"] != "files" {
		t.Errorf("imported %+v", list)
	}
	if _, err = s.Import(t.Context(), rootfs, "", nil); !errors.Is(err, sandpit.Invalid) || !strings.Contains(sandpit.HintOf(err), "--name") {
		t.Errorf("no name: %v", err)
	}
	for _, name := range []string{"host", "./x", "x.tar", "UPPER", "a@" + sha256Of(nil), "a b"} {
		if _, err = s.Import(t.Context(), rootfs, name, nil); !errors.Is(err, sandpit.Invalid) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if _, err = s.ImportFrom(t.Context(), strings.NewReader("nonsense"), "x", nil); !errors.Is(err, sandpit.Invalid) {
		t.Errorf("nonsense: %v", err)
	}
	expectFiles(t, s, imageSuffix, nameSuffix, indexSuffix)
}

// TestImportFromDocker takes what a Docker on this machine writes, if it runs one
// and has an image.
func TestImportFromDocker(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}").Output()
	name, _, _ := strings.Cut(string(out), "\n")
	if err != nil || name == "" {
		t.Skip("no Docker with an image on this machine")
	}
	cmd := exec.CommandContext(t.Context(), "docker", "save", name)
	pipe, err := cmd.StdoutPipe()
	must(t, err, cmd.Start())
	s := newStore(t)
	list, err := s.ImportFrom(t.Context(), pipe, "", nil)
	must(t, err, cmd.Wait())
	if got := all(t, resolved(t, s, sandpit.Image(list[0].Name)).Path); len(got) == 0 {
		t.Error("the image is empty")
	}
}

func FuzzDocument(f *testing.F) {
	f.Add([]byte(`{"manifests":[{"digest":"` + sha256Of(nil) + `","size":1,"platform":{"os":"linux","architecture":"amd64"}}]}`))
	f.Add([]byte(`{"config":{"digest":"` + sha256Of(nil) + `","size":1},"layers":[{"digest":"` + sha256Of(nil) + `","size":9223372036854775807,"urls":["x"]}]}`))
	f.Add([]byte(`{"fsLayers":[{}],"layers":null,"manifests":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := parseDocument(data)
		if err != nil {
			if sandpit.CodeOf(err) == sandpit.Internal {
				t.Errorf("no code: %v", err)
			}
			return
		}
		total := int64(0)
		for _, l := range d.Layers {
			total += l.Size
			if l.Size < 0 || !digestPattern().MatchString(l.Digest) {
				t.Errorf("layer %+v", l)
			}
		}
		if total < 0 || total > defaultLimits.bytes {
			t.Errorf("%d bytes of layers", total)
		}
		if m, err := d.pickPlatform(thisMachine()); err == nil && !digestPattern().MatchString(m.Digest) {
			t.Errorf("picked %+v", m)
		}
	})
}

// FuzzLayout gives a directory any index and any list of docker save's.
func FuzzLayout(f *testing.F) {
	f.Add([]byte(`{"manifests":[]}`), []byte(`[{"Config":"c","RepoTags":["a:b"],"Layers":["l"]}]`), "b")
	f.Add([]byte(``), []byte(`[{"Config":"../c","RepoTags":[],"Layers":["../../l"]}]`), "")
	f.Fuzz(func(t *testing.T, index, list []byte, tag string) {
		files := memoryFiles{"manifest.json": list, "c": []byte(`{"rootfs":{"diff_ids":["` + sha256Of(nil) + `"]}}`)}
		if len(index) > 0 {
			files["index.json"] = index
		}
		if _, err := findImage(t.Context(), files, tag); err != nil && sandpit.CodeOf(err) == sandpit.Internal {
			t.Errorf("no code: %v", err)
		}
	})
}
