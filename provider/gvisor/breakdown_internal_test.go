package gvisor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestWordsAreBounded has many engines break down that say much.
func TestWordsAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := log.WriteString("panic: \x1b[2J\u202e" + strings.Repeat("x", 2*maxBreakdownLog)); err != nil {
		t.Fatal(err)
	}
	for i := range maxBreakdowns + 4 {
		engine := filepath.Join(dir, enginesName, strconv.Itoa(i))
		if err := writeBreakdown(engine, "exit status 2", log); err != nil {
			t.Fatal(err)
		}
		began := time.Now().Add(time.Duration(i-100) * time.Minute)
		if err := os.Chtimes(brokenPath(engine), began, began); err != nil {
			t.Fatal(err)
		}
		how := describeBreakdown(t.Context(), engine)
		if !strings.HasPrefix(how, `exit status 2, "panic: \x1b[2J\u202exxx`) || len(how) > maxBreakdownQuote+100 {
			t.Errorf("%d: %.400q", i, how)
		}
	}
	left, err := os.ReadDir(filepath.Join(dir, brokenName))
	if err != nil || len(left) != maxBreakdowns {
		t.Errorf("%d files are left, %v", len(left), err)
	}
	if _, err := os.Stat(brokenPath(filepath.Join(dir, enginesName, "0"))); err == nil {
		t.Error("the oldest one is still there")
	}
	if info, err := os.Stat(brokenPath(filepath.Join(dir, enginesName, strconv.Itoa(maxBreakdowns+3)))); err != nil || info.Size() > maxBreakdownLog+100 {
		t.Errorf("the newest one: %v, %v", info, err)
	}
	if how := describeBreakdown(t.Context(), filepath.Join(dir, enginesName, "other")); how != "" {
		t.Errorf("of one that never was: %q", how)
	}
}
