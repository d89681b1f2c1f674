package config_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

func TestImageSection(t *testing.T) {
	t.Parallel()
	want := config.Image{Pull: "missing", CacheSize: 20 << 30, MaxPulls: 4, PullTimeout: 30 * time.Minute, DockerConfig: "/home/u/.docker"}
	if diff := cmp.Diff(want, load(t, user("")).Image); diff != "" {
		t.Errorf("default (-want +got):\n%s", diff)
	}
	want = config.Image{
		Pull: "never", CacheSize: 1 << 30, OwnerCacheSize: 100 << 20, MaxPulls: 9, PullTimeout: 90 * time.Second, DockerConfig: "/d",
		Mirrors:  map[string][]string{"docker.io": {"m1:5000", "m2/prefix"}, "ghcr.io": {"m3"}},
		Insecure: []string{"m1:5000", "m2"}, Registries: []string{"registry.lan:5000", "10.1.0.0/16"},
		Auth:    map[string]config.Login{"ghcr.io": {User: "u", Password: "p=w:x"}, "m3": {User: "v", Password: ""}},
		PrePull: []string{"python:3.12-slim", "ghcr.io/a/b@sha256:c"},
	}
	file := `[image]
pull = "never"
mirrors = { "docker.io" = ["m1:5000", "m2/prefix"], "ghcr.io" = "m3" }
insecure = ["m1:5000", "m2"]
registries = ["registry.lan:5000", "10.1.0.0/16"]
auth = "ghcr.io=u:p=w:x m3=v:"
docker_config = "/d"
cache_size = "1g"
owner_cache_size = "100m"
max_pulls = 9
pull_timeout = 90
pre_pull = ["python:3.12-slim", "ghcr.io/a/b@sha256:c"]
`
	if diff := cmp.Diff(want, load(t, user(file)).Image); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
	fromVariables := user("",
		"SANDPIT_IMAGE_PULL=never", "SANDPIT_IMAGE_MIRRORS=docker.io=m1:5000,m2/prefix ghcr.io=m3", "SANDPIT_IMAGE_INSECURE=m1:5000,m2", "SANDPIT_IMAGE_REGISTRIES=registry.lan:5000,10.1.0.0/16",
		"SANDPIT_IMAGE_AUTH=ghcr.io=u:p=w:x m3=v:", "DOCKER_CONFIG=/d", "SANDPIT_IMAGE_CACHE_SIZE=1g", "SANDPIT_IMAGE_OWNER_CACHE_SIZE=100m", "SANDPIT_IMAGE_MAX_PULLS=9", "SANDPIT_IMAGE_PULL_TIMEOUT=90s",
		"SANDPIT_IMAGE_PRE_PULL=python:3.12-slim, ghcr.io/a/b@sha256:c")
	if diff := cmp.Diff(want, load(t, fromVariables).Image); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
	if text := fmt.Sprintf("%v %+v %#v", want, want, want.Auth); strings.Contains(text, "p=w") {
		t.Errorf("a password is shown: %s", text)
	}
}

func TestImageProblems(t *testing.T) {
	t.Parallel()
	file := "/home/u/.config/sandpit/config.toml:2: "
	for line, want := range map[string]string{
		`pull = "sometimes"`:              `image.pull: "sometimes" is not one of missing, always, never`,
		`mirrors = "x"`:                   `image.mirrors: "x" is not a table of mirrors; use for example { "docker.io" = ["localhost:5000"] }`,
		`mirrors = {"docker.io" = "a b"}`: `image.mirrors: "a b" is not a registry; write for example ghcr.io or localhost:5000`,
		`registries = [1]`:                `image.registries: a list is not a list of registries; use for example ["registry.lan:5000", "10.1.0.0/16"]`,
		`registries = ["10.1.0.0/ 8"]`:    `image.registries: "10.1.0.0/ 8" is not a registry; write for example ghcr.io or localhost:5000`,
		`insecure = [1]`:                  `image.insecure: a list is not a list of registries; use for example ["registry.lan:5000"]`,
		`insecure = ["http://x"]`:         `image.insecure: "http://x" is not a registry; write for example ghcr.io or localhost:5000`,
		`auth = "secret"`:                 `image.auth: login 1 is not of the form registry=user:password`,
		`auth = ["secret"]`:               `image.auth: is not text; use registry=user:password`,
		`pre_pull = [1]`:                  `image.pre_pull: a list is not a list of images; use for example ["python:3.12-slim"]`,
		`pre_pull = [""]`:                 `image.pre_pull: the name of an image is empty`,
		`cache_size = 1`:                  `image.cache_size: 1 is too small; use at least 64m`,
		`owner_cache_size = 1`:            `image.owner_cache_size: 1 is too small; use at least 64m`,
		`max_pulls = 0`:                   `image.max_pulls: 0 is not a number of images; use 1 to 1000`,
		`pull_timeout = 0`:                `image.pull_timeout: 0 is too short; use at least 1, or omit it for 1800`,
		`chache_size = "1g"`:              `image.chache_size: unknown key; did you mean cache_size?`,
	} {
		if diff := cmp.Diff([]string{file + want}, problems(t, user("[image]\n"+line+"\n"))); diff != "" {
			t.Errorf("%s: problems (-want +got):\n%s", line, diff)
		}
	}
	got := problems(t, user("", "SANDPIT_IMAGE_PUL=x"))
	if diff := cmp.Diff([]string{"SANDPIT_IMAGE_PUL: unknown variable; did you mean SANDPIT_IMAGE_PULL?"}, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}
