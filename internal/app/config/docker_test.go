package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

func loadDocker(t *testing.T, file string, environ ...string) (config.Config, error) {
	t.Helper()
	return config.Load(config.Options{
		File: "config.toml", Environ: environ, UID: 1000, Home: "/home/u",
		ReadFile: func(string) ([]byte, error) { return []byte(file), nil },
	})
}

func TestDocker(t *testing.T) {
	t.Parallel()
	cfg, err := loadDocker(t, "[docker]\nruntime = 'runsc'\nuser = '1000:1000'\ncapabilities = ['sys_ptrace', 'CAP_NET_RAW']\ntmpfs_size = '1m'\npatience = 5\n",
		"DOCKER_HOST=tcp://engine.lan:2376", "DOCKER_CONTEXT=far", "DOCKER_TLS_VERIFY=0", "DOCKER_CERT_PATH=/certs",
		"XDG_RUNTIME_DIR=/run/user/1000", "SANDPIT_DOCKER_NETWORK=bridge", "SANDPIT_DOCKER_READ_ONLY_ROOT=true")
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default().Docker
	want.Host, want.Context, want.TLSVerify, want.CertPath = "tcp://engine.lan:2376", "far", true, "/certs"
	want.Patience = 5 * time.Second
	want.RuntimeDir, want.Network, want.ReadOnlyRoot = "/run/user/1000", "bridge", true
	want.Runtime, want.User, want.Capabilities, want.TmpfsSize = "runsc", "1000:1000", []string{"NET_RAW", "SYS_PTRACE"}, 1<<20
	if diff := cmp.Diff(want, cfg.Docker); diff != "" {
		t.Errorf("docker (-want +got):\n%s", diff)
	}
}

// What others' variables say and we do not understand is reported and ignored; what ours
// say is refused. A password is not repeated.
func TestDockerRefused(t *testing.T) {
	t.Parallel()
	cfg, err := loadDocker(t, "", "DOCKER_HOST=nonsense", "DOCKER_CONTEXT=a b", "DOCKER_CERT_PATH=certs")
	if err != nil || len(cfg.Notices) != 3 || cfg.Docker.Host+cfg.Docker.Context+cfg.Docker.CertPath != "" {
		t.Errorf("docker: %+v, notices %q, %v", cfg.Docker, cfg.Notices, err)
	}
	for line, text := range map[string]string{
		"host = 'nonsense'":                    "not the address of an engine",
		"host = 'tcp://me:s3cret@engine:1'":    "not the address of an engine",
		"host = 5":                             "not the address of an engine",
		"user = 'a b'":                         "not one word",
		"capabilities = ['everything at all']": "not a capability",
		"capabilities = 5":                     "not a list of capabilities",
		"tmpfs_size = 1":                       "too small",
		"open_files = 1":                       "open_files",
		"runtim = 'x'":                         "did you mean runtime?",
	} {
		_, err := loadDocker(t, "[docker]\n"+line)
		if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %q", line, err, text)
		}
	}
}
