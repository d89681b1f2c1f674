package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// TestCallLog has several programs write calls down, more than the file may hold.
func TestCallLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, callsName)
	if err := os.WriteFile(file, bytes.Repeat([]byte("{}\n"), (maxCalls-20_000)/3), 0o600); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 4 {
		l := &callLog{file: file, by: "mcp", onFailure: func(err error) { t.Error(err) }}
		group.Go(func() {
			for range 50 {
				l.record(tool.Call{Tool: strings.Repeat("x", 1000), Session: "local", Failed: true, Code: sandpit.Timeout})
			}
		})
	}
	group.Wait()
	old, written := lines(t, file+".1"), lines(t, file)
	if n := old + written - (maxCalls-20_000)/3; n != 200 || written == 0 || written == 200 {
		t.Errorf("%d calls are written down, %d of them in the newer file", n, written)
	}
	about, err := os.Stat(file)
	if err != nil || about.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", about.Mode(), err)
	}
}

// lines counts those of a file, which all are JSON.
func lines(t *testing.T, name string) (n int) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	scan := bufio.NewScanner(f)
	for ; scan.Scan(); n++ {
		if len(scan.Bytes()) > 2 && !json.Valid(scan.Bytes()) {
			t.Fatalf("line %d: %s", n, scan.Bytes())
		}
	}
	return n
}

// TestCallLogFails tells once that calls cannot be written down, and follows no link.
func TestCallLogFails(t *testing.T) {
	t.Parallel()
	dir, target := t.TempDir(), filepath.Join(t.TempDir(), "target")
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(dir, callsName)); err != nil {
		t.Fatal(err)
	}
	var told int
	l := &callLog{file: filepath.Join(dir, callsName), onFailure: func(error) { told++ }}
	l.record(tool.Call{Tool: "bash"})
	l.record(tool.Call{Tool: "bash"})
	if _, err := os.Stat(target); err == nil || told != 1 {
		t.Errorf("%v, told %d times", err, told)
	}
}
