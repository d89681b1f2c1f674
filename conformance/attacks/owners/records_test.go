package owners_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// environmentOf returns variables with values of about so many bytes together.
func environmentOf(size int) map[string]string {
	env := make(map[string]string)
	for i := range size / 100 {
		env[fmt.Sprintf("V%d", i)] = strings.Repeat("x", 90)
	}
	return env
}

// TestRecordsOfBuilds has builds with large recipes fail at once, over and over, and lists
// them without reading the response.
func TestRecordsOfBuilds(t *testing.T) {
	t.Parallel()
	const builds, recipeSize, mostState = 150, 800 << 10, 96 << 20
	l := newLab(t, labOptions{server: serverMemory, config: "[image]\npull = \"never\"\n"})
	victim := l.bob.create(t, l.image)
	steps := make([]any, 100)
	for i := range steps {
		steps[i] = map[string]any{"env": environmentOf(recipeSize / len(steps))}
	}
	recipe, err := json.Marshal(map[string]any{"recipe": map[string]any{"from": "missing:v1", "steps": steps}})
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for end := time.Now().Add(callTimeout); failed < builds; {
		if time.Now().After(end) {
			t.Fatalf("only %d builds have failed", failed)
		}
		var created struct {
			Build struct {
				ID string `json:"id"`
			} `json:"build"`
		}
		r := l.alice.call(t, http.MethodPost, "/v1/templates", map[string]any{"name": "large"})
		if r.status == http.StatusTooManyRequests { // earlier builds have not ended yet
			time.Sleep(100 * time.Millisecond)
			continue
		}
		r.decode(t, &created)
		l.alice.must(t, http.MethodPost, "/v1/builds/"+created.Build.ID, bytes.NewReader(recipe))
		failed++
	}
	var list struct {
		Items []struct {
			Status string `json:"status"`
		} `json:"items"`
	}
	for end := time.Now().Add(callTimeout); ; time.Sleep(500 * time.Millisecond) {
		r := l.alice.call(t, http.MethodGet, "/v1/templates/large/builds", nil)
		if r.status == http.StatusOK {
			r.decode(t, &list)
		}
		if len(list.Items) > 0 && len(list.Items) <= 60 && !strings.Contains(string(r.body), `"waiting"`) {
			break
		}
		if time.Now().After(end) {
			t.Errorf("the list of builds: %d, with %d items, want at most 60", r.status, len(list.Items))
			break
		}
	}
	if size, _ := diskUsage(filepath.Join(l.dir, "state")); size > mostState {
		t.Errorf("the server's state has %d MiB, want at most %d", size>>20, mostState>>20)
	}
	for range 40 {
		l.alice.ask(t, http.MethodGet, "/v1/templates/large/builds", "")
	}
	checkBob(t, l.bob, victim)
	time.Sleep(3 * time.Second)
	after := l.peakMemory(t)
	t.Logf("at most %d MiB", after>>20)
	if after > mostMemory {
		t.Errorf("the server had %d MiB of memory, want at most %d", after>>20, mostMemory>>20)
	}
}

// TestDeletedSandboxesAreSmall deletes a sandbox with a large spec. What the server remembers
// of it is small: an owner can delete many within an hour.
func TestDeletedSandboxesAreSmall(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{})
	id := l.alice.createWith(t, map[string]any{
		"image": l.image, "name": "large", "env": environmentOf(300 << 10), "labels": map[string]string{"team": "a"},
	})
	l.alice.must(t, http.MethodDelete, "/v1/sandboxes/"+id, nil)
	r := l.alice.must(t, http.MethodGet, "/v1/sandboxes?state=deleted&label=team=a", nil)
	if !strings.Contains(string(r.body), id) || !strings.Contains(string(r.body), `"large"`) {
		t.Errorf("the deleted sandbox is not remembered by its name and labels: %.300s", r.body)
	}
	if len(r.body) > 4096 {
		t.Errorf("%d bytes are remembered of a deleted sandbox", len(r.body))
	}
}

// TestUploadLinksEndWithTheirKey sends files of a build by a link whose API key was deleted:
// before the upload begins, and while it is on its way.
func TestUploadLinksEndWithTheirKey(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{})
	var made struct {
		ID  string `json:"id"`
		Key string `json:"secret"`
	}
	l.admin.must(t, http.MethodPost, "/v1/keys", map[string]any{"owner": "carol"}).decode(t, &made)
	carol := party{name: "carol", key: made.Key, url: l.url, http: l.alice.http}
	stranger := party{name: "stranger", url: l.url, http: l.alice.http}
	template, _ := carol.e2bTemplate(t, "files")
	archive := zeros(t, 1<<20)
	link := carol.uploadLink(t, template, strings.Repeat("ab", 32))
	stranger.must(t, http.MethodPut, link, bytes.NewReader(archive))
	slow := carol.uploadLink(t, template, strings.Repeat("cd", 32))
	conn := l.open(t, fmt.Sprintf("PUT %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\nsome", slow))
	time.Sleep(500 * time.Millisecond) // the upload has begun
	l.admin.must(t, http.MethodDelete, "/v1/keys/"+made.ID, nil)
	if r := stranger.call(t, http.MethodPut, link, bytes.NewReader(archive)); r.status != http.StatusUnauthorized {
		t.Errorf("an upload after the key was deleted: %d, want 401\n%s", r.status, r.body)
	}
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	if err != nil || !strings.Contains(string(answer[:n]), " 401 ") {
		t.Errorf("the upload that was on its way: %q, %v, want 401", answer[:n], err)
	}
}

// TestReferencesOfOthers has alice name what bob has wherever her own requests can name
// something. Nothing of bob's is found, and nothing of it is in a response.
func TestReferencesOfOthers(t *testing.T) {
	t.Parallel()
	const secret = "SECRET-OF-BOB"
	l := newLab(t, labOptions{config: e2bBase})
	bobs := l.bob.createWith(t, map[string]any{"image": l.image, "name": "bobs-name"})
	l.bob.run(t, bobs, "echo "+secret+" > /secret")
	var snapshot struct {
		ID string `json:"id"`
	}
	l.bob.must(t, http.MethodPost, "/v1/snapshots", map[string]any{"sandbox": bobs, "name": "bobs-snapshot"}).decode(t, &snapshot)
	var volume struct {
		ID string `json:"volumeID"`
	}
	l.bob.must(t, http.MethodPost, "/volumes", map[string]any{"name": "bobs-volume"}).decode(t, &volume)
	hash := strings.Repeat("ef", 32)
	bobsTemplate, bobsBuild := l.bob.e2bTemplate(t, "bobs-template")
	l.bob.must(t, http.MethodPut, l.bob.uploadLink(t, bobsTemplate, hash), bytes.NewReader(zeros(t, 1<<10)))
	mine := l.alice.create(t, l.image)
	template, build := l.alice.e2bTemplate(t, "mine")
	own := "/v1/sandboxes/" + mine
	spec := func(s map[string]any) map[string]any {
		s["image"] = cmpOr(s["image"], l.image)
		return map[string]any{"spec": s}
	}
	type attempt struct {
		method, path string
		body         any
	}
	var attempts []attempt
	for _, ref := range []string{snapshot.ID, "bobs-snapshot", "bob/bobs-snapshot"} {
		attempts = append(attempts,
			attempt{http.MethodPost, own + "/rollback", map[string]any{"snapshot": ref}},
			attempt{http.MethodPost, "/v1/sandboxes", spec(map[string]any{"image": "snapshot:" + ref})},
			attempt{http.MethodPost, "/sandboxes", map[string]any{"templateID": ref}},
			attempt{http.MethodPost, "/sandboxes", map[string]any{"templateID": "snapshot:" + ref}},
			attempt{http.MethodGet, "/v1/diff?from=snapshot:" + ref + "&to=sandbox:" + mine, nil},
		)
	}
	attempts = append(attempts, attempt{http.MethodGet, "/v1/diff?from=sandbox:" + bobs + "&to=sandbox:" + mine, nil})
	for _, ref := range []string{"bobs-volume", volume.ID, "bob/bobs-volume", "../" + volume.ID} {
		attempts = append(attempts,
			attempt{http.MethodPost, "/v1/sandboxes", spec(map[string]any{"mounts": []any{map[string]any{"volume": ref, "target": "/mnt"}}})},
			attempt{http.MethodPost, "/sandboxes", map[string]any{"templateID": "base", "volumeMounts": []any{map[string]any{"name": ref, "path": "/mnt"}}}},
			attempt{http.MethodDelete, "/volumes/" + ref, nil},
		)
	}
	for _, name := range []string{"bobs-name", "bob/bobs-name"} {
		attempts = append(attempts, attempt{http.MethodGet, "/v1/sandboxes/" + name, nil}, attempt{http.MethodDelete, "/v1/sandboxes/" + name, nil})
	}
	copies := map[string]any{"fromImage": l.image, "steps": []any{map[string]any{"type": "COPY", "args": []string{"zeros", "/zeros", "", ""}, "filesHash": hash}}}
	attempts = append(attempts,
		attempt{http.MethodPost, "/v2/templates/" + template + "/builds/" + build, copies},
		attempt{http.MethodPost, "/v2/templates/" + template + "/builds/" + bobsBuild, copies},
		attempt{http.MethodGet, "/templates/" + template + "/builds/" + bobsBuild + "/status", nil},
		attempt{http.MethodGet, "/templates/" + template + "/builds/" + bobsBuild + "/logs", nil},
	)
	for _, a := range attempts {
		r := l.alice.call(t, a.method, a.path, a.body)
		if r.status < 400 || r.status >= 500 || strings.Contains(string(r.body), secret) {
			t.Errorf("%s %s %v: %d, want an error of the client\n%s", a.method, a.path, a.body, r.status, r.body)
		}
	}
	var link struct {
		Present bool `json:"present"`
	}
	l.alice.must(t, http.MethodGet, "/templates/"+template+"/files/"+hash, nil).decode(t, &link)
	if link.Present {
		t.Error("alice sees that files of bob's hash exist")
	}
	l.wantOwnNames(t, mine, bobs)
	if out, _ := l.bob.run(t, bobs, "cat /secret"); strings.TrimSpace(out) != secret {
		t.Errorf("bob's file has %q", out)
	}
}

// wantOwnNames has alice name her sandbox as bob's is identified. Requests by bob's ID still
// reach bob's.
func (l *lab) wantOwnNames(t *testing.T, mine, bobs string) {
	t.Helper()
	for _, name := range []string{bobs, "bobs-name"} {
		l.alice.call(t, http.MethodPut, "/v1/sandboxes/"+mine+"/name", map[string]any{"name": name})
		for _, p := range []party{l.bob, l.admin, l.socket} {
			var found struct {
				ID string `json:"id"`
			}
			p.must(t, http.MethodGet, "/v1/sandboxes/"+bobs, nil).decode(t, &found)
			if found.ID != bobs {
				t.Errorf("%s asks for %s and gets %s", p.name, bobs, found.ID)
			}
		}
		if got := strings.TrimSpace(l.commandWith(t, nil, "exec", bobs, "--", "cat", "/secret")); got != "SECRET-OF-BOB" {
			t.Errorf("the administrator's command in %s prints %q", bobs, got)
		}
	}
}

func cmpOr(value any, other string) any {
	if value == nil {
		return other
	}
	return value
}

// TestQuotaAtOnce has alice create, fork, start and resume more sandboxes at a time than she
// may have, in every way there is.
func TestQuotaAtOnce(t *testing.T) {
	t.Parallel()
	const quota = 3
	l := newLab(t, labOptions{config: fmt.Sprintf("[manager]\nowner_quota = %d\n%s", quota, e2bBase)})
	first := l.alice.create(t, l.image)
	var stopped, suspended []string
	for range 3 {
		id := l.alice.create(t, l.image)
		l.alice.must(t, http.MethodPost, "/v1/sandboxes/"+id+"/stop", nil)
		stopped = append(stopped, id)
		id = l.alice.create(t, l.image)
		l.alice.must(t, http.MethodPost, "/v1/sandboxes/"+id+"/pause?disk=true", nil)
		suspended = append(suspended, id)
	}
	var requests []func(context.Context) (response, error)
	add := func(path string, body any) {
		requests = append(requests, func(ctx context.Context) (response, error) { return l.alice.do(ctx, http.MethodPost, path, body, nil) })
	}
	for _, id := range stopped {
		add("/v1/sandboxes/"+id+"/start", nil)
		add("/v1/sandboxes/"+id+"/run", map[string]any{"command": "true"})
	}
	for _, id := range suspended {
		add("/v1/sandboxes/"+id+"/resume", nil)
		add("/sandboxes/"+id+"/connect", map[string]any{"timeout": 600})
		add("/aio/"+id+"/v1/shell/exec", map[string]any{"command": "true"})
	}
	for range 3 {
		add("/v1/sandboxes/"+first+"/fork", map[string]any{})
		add("/sandboxes/"+first+"/fork", map[string]any{"count": 3})
		add("/sandboxes", map[string]any{"templateID": "base", "timeout": 600})
		add("/v1/sandboxes", map[string]any{"spec": map[string]any{"image": l.image}})
	}
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	ended := make(chan struct{})
	var group sync.WaitGroup
	for _, request := range requests {
		group.Go(func() { _, _ = request(ctx) }) // most are refused
	}
	go func() { group.Wait(); close(ended) }()
	most := 0
	for done := false; !done; {
		select {
		case <-ended:
			done = true
		case <-time.After(20 * time.Millisecond):
		}
		var page struct {
			Items []json.RawMessage `json:"items"`
		}
		l.alice.must(t, http.MethodGet, "/v1/sandboxes?state=running&limit=1000", nil).decode(t, &page)
		most = max(most, len(page.Items))
	}
	if most < 1 || most > quota {
		t.Errorf("%d sandboxes ran at a time, want at most %d", most, quota)
	}
}
