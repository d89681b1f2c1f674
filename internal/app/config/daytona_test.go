package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// TestDaytona reads the section, the variables of Daytona's SDK and of OpenManus, and names that programs for OpenManus
// write.
func TestDaytona(t *testing.T) {
	t.Parallel()
	usual := config.Default().Daytona
	for name, tc := range map[string]struct {
		file    string
		environ []string
		change  func(*config.Daytona)
	}{
		"nothing": {change: func(*config.Daytona) {}},
		"variables": {environ: []string{"DAYTONA_API_KEY=dtn_1", "DAYTONA_SERVER_URL=https://a.example/api", "DAYTONA_TARGET=eu"}, change: func(d *config.Daytona) {
			d.Key, d.ServerURL, d.Target = "dtn_1", "https://a.example/api", "eu"
		}},
		"the SDK's own name first": {environ: []string{"DAYTONA_SERVER_URL=https://a.example/api", "DAYTONA_API_URL=https://b.example/api"}, change: func(d *config.Daytona) {
			d.ServerURL = "https://b.example/api"
		}},
		"image and command": {file: "sandbox_image_name = 'mine:1'\nsandbox_entrypoint = '/bin/start -a'", change: func(d *config.Daytona) {
			d.Image, d.Entrypoint = "mine:1", "/bin/start -a"
		}},
		"intervals in minutes": {file: "auto_stop_interval = 30\nauto_archive_interval = 2880", change: func(d *config.Daytona) {
			d.AutoStop, d.AutoArchive = 30*time.Minute, 48*time.Hour
		}},
		"limits":   {file: "cpu = 1\nmemory = '2g'\ndisk = '3g'", change: func(d *config.Daytona) { d.CPU, d.Memory, d.Disk = 1, 2<<30, 3<<30 }},
		"password": {file: "vnc_password = 'mine'", change: func(d *config.Daytona) { d.VNCPassword = "mine" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, err := loadDocker(t, "[daytona]\n"+tc.file, tc.environ...)
			want := usual
			tc.change(&want)
			if diff := cmp.Diff(want, cfg.Daytona); err != nil || diff != "" || len(cfg.Notices) > 0 {
				t.Errorf("%v; notices %q; daytona (-want +got):\n%s", err, cfg.Notices, diff)
			}
		})
	}
	if usual.ServerURL != "https://app.daytona.io/api" || usual.Target != "us" || usual.Image != "whitezxj/sandbox:0.1.0" || usual.VNCPassword != "" {
		t.Errorf("the defaults are %+v", usual)
	}
}

// TestDaytonaRefused refuses values that make no sense, and reports a password that everyone knows.
func TestDaytonaRefused(t *testing.T) {
	t.Parallel()
	for line, text := range map[string]string{
		"auto_stop_interval = 0":                      "config.toml:2: daytona.auto_stop_interval: 0 is not a number of minutes above 0",
		"auto_stop_interval = '15'":                   "is not a number of minutes above 0",
		"auto_archive_interval = 1152921504606846976": "is not a number of minutes above 0",
		"auto_stop = 60\nauto_stop_interval = 1":      "config.toml:3: daytona.auto_stop_interval: stands beside auto_stop; write one of them",
		"VNC_password = 'a'\nvnc_password = 's3cret'": "stands beside VNC_password; write one of them",
		"vnc_password = 7":                            "is not a password",
	} {
		_, err := loadDocker(t, "[daytona]\n"+line)
		if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %q", line, err, text)
		}
	}
	for _, line := range []string{"VNC_password = '123456'", "vnc_password = '123456'"} {
		cfg, err := loadDocker(t, "[daytona]\n"+line)
		if err != nil || len(cfg.Notices) != 1 || !strings.Contains(cfg.Notices[0], "config.toml:2: daytona.VNC_password = 123456 is the well-known default") {
			t.Errorf("%s: %v, notices %q", line, err, cfg.Notices)
		}
	}
}
