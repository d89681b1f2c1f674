package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// TestDoctorNamesWhatIsIgnored loads a file with sections of other programs and a setting that
// has no effect.
func TestDoctorNamesWhatIsIgnored(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(file, []byte("[browser]\nkey = 'secret-value'\n[llm]\nmodel = 'x'\napi_key = 'sk-secret'\nbase_url = 'https://llm.example/v1'\n[sandbox]\nuse_sandbox = false\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Options{File: file, Environ: []string{"HOME=" + t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, f := range configFindings(cfg) {
		text.WriteString(f.Text + "\n")
		if f.Failed {
			t.Errorf("%q is no failure", f.Text)
		}
	}
	for _, want := range []string{file, "other programs: [browser]", "[llm]: x (openai) at https://llm.example/v1, API key set", "sandbox.use_sandbox = false has no effect"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("got\n%s\nwant %q", &text, want)
		}
	}
	if strings.Contains(text.String(), "secret") {
		t.Errorf("a value of an ignored section is shown:\n%s", &text)
	}
	cfg, err = config.Load(config.Options{Environ: []string{"HOME=" + t.TempDir()}})
	if err != nil || len(configFindings(cfg)) != 1 {
		t.Errorf("without a file: %+v, %v, want one finding", configFindings(cfg), err)
	}
}
