package config_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "1073741824": 1 << 30, "10b": 10, "10B": 10,
		"1k": 1 << 10, "512m": 512 << 20, "512M": 512 << 20, "512MB": 512 << 20, "512MiB": 512 << 20, "512 mb": 512 << 20,
		"1g": 1 << 30, "1.5g": 3 << 29, "0.5g": 1 << 29, "1.000001k": 1024, "2t": 2 << 40, "1p": 1 << 50, "8191p": 8191 << 50,
	} {
		got, err := config.ParseSize(text)
		if err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
}

func TestParseSizeRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", " ", "m", "12x", "-1m", "+1m", "1e3", "1,5g", ".5g", "5.g", "1.5.5g", "1 000", "1_000", "0x10", "1gg", "1gm", "1bb",
		"1ib", "1  g", " 1g", "1g ", "1g\n", "٣m", "inf", "NaN", "8192p", "9223372036854775808", "99999999999999999999",
	} {
		got, err := config.ParseSize(text)
		if !errors.Is(err, sandpit.Invalid) {
			t.Errorf("ParseSize(%q) = %d, %v, want Invalid", text, got, err)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, text := range []string{"512m", "1.5g", "1073741824", "12x", "8191.99999999999999999p", "1 MiB", "-0.0k"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		size, err := config.ParseSize(text)
		if err != nil {
			if size != 0 || strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("ParseSize(%q) = %d, %q", text, size, err)
			}
			return
		}
		if size < 0 || strings.ContainsAny(text, "-+eExX\n") {
			t.Errorf("ParseSize(%q) = %d", text, size)
		}
	})
}
