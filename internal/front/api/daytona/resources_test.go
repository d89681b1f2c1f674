package daytona_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// TestSnapshots saves a sandbox, creates another from it, and forks one.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	made := r.made(t, `{"labels":{"a":"1"}}`)
	path := "/sandbox/" + made.ID
	r.do(t, r.Ann, http.MethodPost, path+"/snapshot", `{}`).want(t, http.StatusBadRequest, "name is missing")
	r.do(t, r.Ann, http.MethodPost, path+"/snapshot", `{"name":"saved"}`).want(t, http.StatusOK, made.ID)
	r.do(t, r.Ann, http.MethodPost, path+"/snapshot", `{"name":"saved"}`).want(t, http.StatusConflict, "saved")
	g := r.do(t, r.Ann, http.MethodGet, "/snapshots/saved", "")
	g.want(t, http.StatusOK, `"state":"active"`)
	var fields map[string]json.RawMessage
	g.Decode(t, &fields)
	for _, name := range []string{"id", "general", "name", "state", "size", "entrypoint", "cpu", "gpu", "mem", "disk", "errorReason", "createdAt", "updatedAt", "lastUsedAt"} {
		if _, ok := fields[name]; !ok {
			t.Errorf("a snapshot has no %s", name)
		}
	}
	r.do(t, r.Ann, http.MethodPost, "/snapshots/saved/activate", "").want(t, http.StatusOK, `"state":"active"`)
	r.do(t, r.Ann, http.MethodGet, "/snapshots/saved/build-logs-url", "").want(t, http.StatusNotFound, "was not built")
	r.do(t, r.Ann, http.MethodGet, "/snapshots?name=sav", "").want(t, http.StatusOK, `"total":1`)
	r.do(t, r.Ann, http.MethodGet, "/snapshots?sourceSandboxId="+made.ID+"&sort=name&order=asc", "").want(t, http.StatusOK, `"total":1`)
	r.do(t, r.Ann, http.MethodGet, "/snapshots?name=none", "").want(t, http.StatusOK, `"items":[]`)
	r.do(t, r.Ann, http.MethodGet, "/snapshots?sort=x", "").want(t, http.StatusBadRequest, "sort")
	if b := r.made(t, `{"snapshot":"saved"}`); b.Snapshot != "saved" || len(b.Labels) != 0 {
		t.Errorf("from a snapshot %+v", b)
	}
	var fork box
	g = r.do(t, r.Ann, http.MethodPost, path+"/fork", `{"name":"copy"}`)
	g.want(t, http.StatusOK, `"state":"started"`)
	g.Decode(t, &fork)
	if fork.ID == made.ID || fork.Name != "copy" || fork.Labels["a"] != "1" {
		t.Errorf("fork %+v", fork)
	}
	r.do(t, r.Ann, http.MethodPost, path+"/fork", `{"name":"copy"}`).want(t, http.StatusConflict, "copy")
	r.do(t, r.Ann, http.MethodPost, path+"/fork", `{"name":"no spaces"}`).want(t, http.StatusBadRequest, "invalid name")
	if g := r.do(t, r.Ann, http.MethodGet, "/sandbox", ""); strings.Count(g.Body, `"toolboxProxyUrl"`) != 3 {
		t.Errorf("a fork that failed is left: %s", g.Body)
	}
	r.do(t, r.Ann, http.MethodDelete, "/snapshots/saved", "").want(t, http.StatusOK, "")
	r.do(t, r.Ann, http.MethodDelete, "/snapshots/saved", "").want(t, http.StatusNotFound, "not found")
	r.do(t, r.Ann, http.MethodPost, "/snapshots", `{"name":"x"}`).want(t, http.StatusBadRequest, "imageName")
	r.do(t, r.Ann, http.MethodPost, "/snapshots", `{"name":"x","imageName":"y","gpu":1}`).want(t, http.StatusBadRequest, "gpu")
	r.do(t, r.Ann, http.MethodPost, "/snapshots", `{"name":"x","imageName":"y","regionId":"mars"}`).want(t, http.StatusNotFound, "Region")
}

// TestResize changes the limits of a sandbox, as far as its state permits.
func TestResize(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	id := r.made(t, `{"buildInfo":{"dockerfileContent":"FROM host\n"},"cpu":1,"memory":2,"disk":3}`).ID
	path := "/sandbox/" + id
	resize := func(body string, status int, text string) {
		t.Helper()
		r.do(t, r.Ann, http.MethodPost, path+"/resize", body).want(t, status, text)
	}
	limits := func() sandpit.Resources {
		view, _ := r.World.Look(sandpit.ID(id))
		return view.Resources
	}
	resize(`{"cpu":1,"memory":2}`, http.StatusBadRequest, "No resource changes specified")
	resize(`{}`, http.StatusBadRequest, "No resource changes specified")
	for _, body := range []string{`{"cpu":0}`, `{"memory":-1}`, `{"disk":1e300}`, `{"cpu":"x"}`, `{"cpu":4000}`, `{"memory":1e-5}`} {
		resize(body, http.StatusBadRequest, "")
	}
	resize(`{"cpu":0.5}`, http.StatusBadRequest, "cpu 0.5: a started sandbox has 1 and only grows; stop it first")
	resize(`{"cpu":2,"memory":1}`, http.StatusBadRequest, "memory 1: a started sandbox has 2 GiB and only grows; stop it first")
	resize(`{"disk":4}`, http.StatusBadRequest, "the disk of a started sandbox cannot be changed; stop it first")
	if got := limits(); got.CPUs != 1 || got.Memory != 2<<30 {
		t.Errorf("limits after errors: %+v", got)
	}
	resize(`{"cpu":2,"memory":4,"disk":3}`, http.StatusOK, `"state":"started"`)
	if b := r.is(t, id); b.CPU != 2 || b.Memory != 4 || b.Disk != 3 || limits() != (sandpit.Resources{CPUs: 2, Memory: 4 << 30, Disk: 3 << 30}) {
		t.Errorf("sandbox %+v, limits %+v", b, limits())
	}
	r.World.Inject(fake.Fault{Op: fake.OpResize, Err: sandpit.Errorf(sandpit.Conflict, "it was started with 2 processors"), Times: 1})
	resize(`{"cpu":64}`, http.StatusBadRequest, "it was started with 2 processors")
	r.do(t, r.Ann, http.MethodPost, path+"/stop", "").want(t, http.StatusOK, `"state":"stopped"`)
	resize(`{"disk":2}`, http.StatusBadRequest, "disk 2: the disk has 3 GiB and only grows")
	resize(`{"cpu":1,"memory":1,"disk":5}`, http.StatusOK, `"state":"stopped"`)
	if b := r.is(t, id); b.CPU != 1 || b.Memory != 1 || b.Disk != 5 || limits() != (sandpit.Resources{CPUs: 1, Memory: 1 << 30, Disk: 5 << 30}) {
		t.Errorf("sandbox %+v, limits %+v", b, limits())
	}
	r.do(t, r.Ann, http.MethodPost, path+"/archive", "").want(t, http.StatusOK, `"state":"archived"`)
	resize(`{"cpu":2}`, http.StatusBadRequest, "Sandbox must be started or stopped to be resized")
}

// TestVolumes creates a volume, and mounts it by ID and by name.
func TestVolumes(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var v struct{ ID, Name, OrganizationID, State string }
	g := r.do(t, r.Ann, http.MethodPost, "/volumes", `{"name":"data"}`)
	g.want(t, http.StatusOK, `"errorReason":null`)
	g.Decode(t, &v)
	if v.Name != "data" || v.OrganizationID != "ann" || v.State != "ready" {
		t.Errorf("volume %+v", v)
	}
	r.do(t, r.Ann, http.MethodPost, "/volumes", `{"name":"../x"}`).want(t, http.StatusBadRequest, "volume")
	r.do(t, r.Ann, http.MethodGet, "/volumes", "").want(t, http.StatusOK, v.ID)
	r.do(t, r.Ann, http.MethodGet, "/volumes/"+v.ID, "").want(t, http.StatusOK, "data")
	b := r.made(t, `{"volumes":[{"volumeId":"`+v.ID+`","mountPath":"/data"}]}`)
	if len(b.Volumes) != 1 || b.Volumes[0].VolumeID != v.ID || b.Volumes[0].MountPath != "/data" {
		t.Errorf("mounts %+v", b.Volumes)
	}
	var part struct {
		ID      string
		Volumes []struct{ Subpath string }
	}
	g = r.do(t, r.Ann, http.MethodPost, "/sandbox", `{"volumes":[{"volumeId":"data","mountPath":"/part","subpath":"/a/b/"}]}`)
	if g.Decode(t, &part); len(part.Volumes) != 1 || part.Volumes[0].Subpath != "a/b" {
		t.Errorf("mount of a part %s", g.Body)
	}
	r.do(t, r.Ann, http.MethodDelete, "/sandbox/"+part.ID, "").want(t, http.StatusOK, "")
	for _, subpath := range []string{"..", "a/../..", "a//b", "./a"} {
		r.do(t, r.Ann, http.MethodPost, "/sandbox", `{"volumes":[{"volumeId":"data","mountPath":"/part","subpath":"`+subpath+`"}]}`).want(t, http.StatusBadRequest, "subpath")
	}
	r.do(t, r.Ann, http.MethodDelete, "/volumes/"+v.ID, "").want(t, http.StatusConflict, "mounted")
	r.do(t, r.Ann, http.MethodDelete, "/sandbox/"+b.ID, "").want(t, http.StatusOK, "")
	r.do(t, r.Ann, http.MethodDelete, "/volumes/"+v.ID, "").want(t, http.StatusOK, "")
	r.do(t, r.Ann, http.MethodGet, "/volumes/"+v.ID, "").want(t, http.StatusNotFound, "not found")
}

// TestNetworkSettings changes the network of a sandbox that has none.
func TestNetworkSettings(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	path := "/sandbox/" + r.made(t, `{}`).ID + "/network-settings"
	for _, body := range []string{`{}`, `{"networkBlockAll":true}`} {
		r.do(t, r.Ann, http.MethodPost, path, body).want(t, http.StatusOK, `"networkBlockAll":true`)
	}
	r.do(t, r.Ann, http.MethodPost, path, `{"networkAllowList":"192.0.2.0/24"}`).want(t, http.StatusBadRequest, "created without a network")
	r.do(t, r.Ann, http.MethodPost, path, `{"networkAllowList":"x"}`).want(t, http.StatusBadRequest, "range of addresses")
}

// TestPorts returns URLs of ports.
func TestPorts(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	id := r.made(t, `{}`).ID
	path := "/sandbox/" + id + "/ports/"
	r.do(t, r.Ann, http.MethodGet, path+"8080/preview-url", "").want(t, http.StatusOK, `"url":"http://`+id+`.localhost","token":"token of port 8080 of `+id)
	// Earlier clients look for the toolbox API at this port.
	r.do(t, r.Ann, http.MethodGet, path+"2280/preview-url", "").
		want(t, http.StatusOK, `{"sandboxId":"`+id+`","url":"`+r.URL+`/toolbox/`+id+`","token":"token of port 1 of `+id+`"}`)
	r.do(t, r.Bob, http.MethodGet, path+"2280/preview-url", "").want(t, http.StatusNotFound, "")
	r.do(t, r.Ann, http.MethodGet, path+"8080/signed-preview-url", "").want(t, http.StatusOK, `"token":"signed for 1m0s","port":8080`)
	r.do(t, r.Ann, http.MethodGet, path+"8080/signed-preview-url?expiresInSeconds=86400", "").want(t, http.StatusOK, "24h")
	for _, query := range []string{"0", "86401", "x"} {
		r.do(t, r.Ann, http.MethodGet, path+"8080/signed-preview-url?expiresInSeconds="+query, "").want(t, http.StatusBadRequest, "expiresInSeconds")
	}
	r.do(t, r.Ann, http.MethodPost, path+"8080/signed-preview-url/good/expire", "").want(t, http.StatusOK, "")
	r.do(t, r.Ann, http.MethodPost, path+"8080/signed-preview-url/bad/expire", "").want(t, http.StatusNotFound, "no such token")
	r.do(t, r.Ann, http.MethodGet, "/sandbox/"+id+"/signing-key", "").want(t, http.StatusOK, `"key `+id+`"`)
	r.do(t, r.Ann, http.MethodPost, "/sandbox/"+id+"/signing-key/rotate", "").want(t, http.StatusOK, `"renewed key `+id+`"`)
	for _, port := range []string{"0", "65536", "x", "-1"} {
		r.do(t, r.Ann, http.MethodGet, path+port+"/preview-url", "").want(t, http.StatusBadRequest, "Invalid port")
	}
	r.do(t, r.Ann, http.MethodGet, "/sandbox/"+id+"/toolbox-proxy-url", "").want(t, http.StatusOK, `{"url":"`+r.URL+`/toolbox"}`)
}

// TestSSH creates, checks and revokes tokens for SSH.
func TestSSH(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	id := r.made(t, `{}`).ID
	path := "/sandbox/" + id + "/ssh-access"
	var access struct {
		Token, SandboxID, SSHCommand string
		ExpiresAt                    time.Time
	}
	g := r.do(t, r.Ann, http.MethodPost, path+"?expiresInMinutes=5", "")
	g.want(t, http.StatusOK, id)
	g.Decode(t, &access)
	if left := time.Until(access.ExpiresAt); left < 4*time.Minute || left > 5*time.Minute || access.SSHCommand != "ssh -p 2222 "+id+"@127.0.0.1" {
		t.Errorf("access %+v", access)
	}
	valid := "/sandbox/ssh-access/validate?token="
	r.do(t, r.Ann, http.MethodGet, valid+access.Token, "").want(t, http.StatusOK, `{"valid":true,"sandboxId":"`+id+`"}`)
	r.do(t, r.Ann, http.MethodGet, valid+"x", "").want(t, http.StatusOK, `"valid":false`)
	r.do(t, r.Ann, http.MethodDelete, path+"?token=x", "").want(t, http.StatusNotFound, "no such SSH token")
	r.do(t, r.Ann, http.MethodDelete, path+"?token="+access.Token, "").want(t, http.StatusOK, id)
	r.do(t, r.Ann, http.MethodGet, valid+access.Token, "").want(t, http.StatusOK, `"valid":false`)
	r.do(t, r.Ann, http.MethodPost, path+"?expiresInMinutes=0", "").want(t, http.StatusBadRequest, "expiresInMinutes")
	r.do(t, r.Ann, http.MethodPost, path, "").Decode(t, &access)
	r.do(t, r.Ann, http.MethodDelete, path, "").want(t, http.StatusOK, id)
	r.do(t, r.Ann, http.MethodGet, valid+access.Token, "").want(t, http.StatusOK, `"valid":false`)
}

// TestAbout describes the server, partly without a key.
func TestAbout(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.do(t, "", http.MethodGet, "/config", "").want(t, http.StatusOK, `"proxyToolboxUrl":"`+r.URL+`/toolbox"`)
	r.do(t, "", http.MethodGet, "/health", "").want(t, http.StatusOK, "ok")
	r.do(t, "", http.MethodGet, "/health/ready", "").want(t, http.StatusOK, "ok")
	r.do(t, "", http.MethodGet, "/regions", "").want(t, http.StatusUnauthorized, "API key")
	for _, path := range []string{"/regions", "/shared-regions"} {
		r.do(t, r.Ann, http.MethodGet, path, "").want(t, http.StatusOK, `"id":"local"`)
	}
	g := r.do(t, r.Ann, http.MethodGet, "/api-keys/current", "")
	g.want(t, http.StatusOK, `"name":"laptop"`)
	if strings.Contains(g.Body, r.Ann) {
		t.Error("the key is in the response")
	}
}

// TestImages resolves what sandboxes start from.
func TestImages(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	if b := r.made(t, `{"snapshot":"daytonaio/sandbox:0.4.3"}`); b.Snapshot != "daytonaio/sandbox:0.4.3" {
		t.Errorf("snapshot %q", b.Snapshot)
	}
	b := r.made(t, `{"buildInfo":{"dockerfileContent":"FROM host\n"},"cpu":2,"memory":4,"disk":5,"user":"root"}`)
	if b.CPU != 2 || b.Memory != 4 || b.Disk != 5 || b.Snapshot != "host" || b.User != "root" {
		t.Errorf("of an image %+v", b)
	}
}
