// Fresh checks whether the Go toolchain and the modules of the program are current:
//
//	go run -C tools/fresh . -module ../.. -held held.txt
//
// It fails if a newer release of a directly required module has been out for longer than
// -days, or if the toolchain in go.mod lacks two or more patch releases. It prints everything else
// that is not the newest. A line "MODULE REASON" in the file of held modules excuses a module.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	dir := flag.String("module", ".", "the `directory` of the module")
	held := flag.String("held", "", "a `file` of modules that are held back, with the reasons")
	days := flag.Int("days", 90, "how many `days` a newer release may have been out")
	flag.Parse()
	c := checker{dir: *dir, tolerance: time.Duration(*days) * 24 * time.Hour, now: time.Now()}
	if err := c.run(*held); err != nil {
		fmt.Fprintln(os.Stderr, "fresh:", err)
		os.Exit(1)
	}
}

// checker compares a module's requirements with the available releases.
type checker struct {
	dir       string
	tolerance time.Duration
	now       time.Time
}

// finding is a requirement that is not the newest release.
type finding struct {
	text  string
	stale bool // an update is due
}

func (c checker) run(heldFile string) error {
	held, err := readHeld(heldFile)
	if err != nil {
		return err
	}
	modules, err := c.required()
	if err != nil {
		return err
	}
	findings := make([]finding, len(modules)+1)
	var workers sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i, m := range modules {
		if held[m] != "" {
			findings[i].text = m + " is held back: " + held[m]
			continue
		}
		workers.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			findings[i] = c.checkModule(m)
		})
	}
	workers.Go(func() { findings[len(modules)] = c.checkToolchain() })
	workers.Wait()
	var stale []string
	for _, f := range findings {
		if f.text != "" {
			fmt.Println(f.text)
		}
		if f.stale {
			stale = append(stale, f.text)
		}
	}
	if len(stale) > 0 {
		return fmt.Errorf("update these, or say in the file of held modules why not:\n%s", strings.Join(stale, "\n"))
	}
	return nil
}

// readHeld reads lines with a module and a reason.
func readHeld(file string) (map[string]string, error) {
	held := make(map[string]string)
	if file == "" {
		return held, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		module, reason, ok := strings.Cut(line, " ")
		if !ok {
			return nil, fmt.Errorf("held module %s: the reason is missing", module)
		}
		held[module] = strings.TrimSpace(reason)
	}
	return held, nil
}

// required returns the paths of the modules that are required directly.
func (c checker) required() ([]string, error) {
	var file struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := c.ask(&file, "mod", "edit", "-json"); err != nil {
		return nil, err
	}
	var paths []string
	for _, r := range file.Require {
		if !r.Indirect {
			paths = append(paths, r.Path)
		}
	}
	return paths, nil
}

// checkModule compares the version of a module with the newest one.
func (c checker) checkModule(path string) finding {
	var m struct {
		Version string
		Update  *struct {
			Version string
			Time    time.Time
		}
	}
	if err := c.ask(&m, "list", "-m", "-u", "-json", path); err != nil {
		return finding{text: fmt.Sprintf("%s: not known whether it is current: %v", path, err)}
	}
	if m.Update == nil {
		return finding{}
	}
	age := c.now.Sub(m.Update.Time)
	return finding{
		text:  fmt.Sprintf("%s %s: %s is out since %d days", path, m.Version, m.Update.Version, int(age.Hours()/24)),
		stale: age > c.tolerance,
	}
}

// checkToolchain compares the toolchain that go.mod names with the patch releases of its
// minor version.
func (c checker) checkToolchain() finding {
	var file struct{ Toolchain string }
	if err := c.ask(&file, "mod", "edit", "-json"); err != nil || file.Toolchain == "" {
		return finding{text: fmt.Sprintf("go: go.mod names no toolchain: %v", err), stale: true}
	}
	own := strings.TrimPrefix(file.Toolchain, "go")
	list, err := c.output("list", "-m", "-versions", "go")
	if err != nil {
		return finding{text: fmt.Sprintf("go %s: not known whether it is current: %v", own, err)}
	}
	newest := newestPatch(own, strings.Fields(string(list)))
	behind := patchOf(newest) - patchOf(own)
	if behind <= 0 {
		return finding{}
	}
	return finding{text: fmt.Sprintf("go %s: %s is out (set the line toolchain in go.mod)", own, newest), stale: behind > 1}
}

// newestPatch returns the last patch release of the minor version of own.
func newestPatch(own string, versions []string) string {
	minor := minorOf(own)
	newest := own
	for _, v := range versions {
		if minorOf(v) == minor && patchOf(v) > patchOf(newest) {
			newest = v
		}
	}
	return newest
}

// minorOf returns 1.26 of 1.26.8.
func minorOf(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// patchOf returns 8 of 1.26.8, and 0 for other versions.
func patchOf(version string) int {
	parts := strings.Split(version, ".")
	if len(parts) != 3 {
		return 0
	}
	n, _ := strconv.Atoi(parts[2]) // a release candidate counts as none
	return n
}

// ask decodes what the go command prints.
func (c checker) ask(to any, args ...string) error {
	out, err := c.output(args...)
	if err != nil {
		return err
	}
	return json.Unmarshal(out, to)
}

// output runs the go command in the module, and retries once for failures of a server.
func (c checker) output(args ...string) ([]byte, error) {
	var last error
	for range 2 {
		cmd := exec.Command("go", args...)
		cmd.Dir = c.dir
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err == nil {
			return out, nil
		}
		last = errors.New(strings.TrimSpace(errs.String()))
	}
	return nil, last
}
