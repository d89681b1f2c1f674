package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// installLimit is how long installing an SDK may take.
const installLimit = 3 * time.Minute

// installSDK returns a directory with the npm packages of a folder and a script that uses them.
func (k *kit) installSDK(ctx context.Context, folder, file string, script []byte) (string, error) {
	if k.root.what == busyboxAlone {
		return "", errors.New("the root file system has no bash")
	}
	dir := filepath.Join(k.dir, filepath.Base(folder))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600) //nolint:gosec // the names are above
		}
		if err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, file), script, 0o600); err != nil {
		return "", err
	}
	if _, err := exec.LookPath("node"); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, installLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w: %s", err, lastWords(string(out)))
	}
	return dir, nil
}

// nodeCall is an operation of a script that is measured n times, in ms, or in MB/s for 10 MB.
type nodeCall struct {
	metric string
	unit   string
	n      int
	word   string
}

// callNode measures operations of a script.
func (k *kit) callNode(ctx context.Context, n *node, by string, calls []nodeCall) error {
	var errs []error
	for _, w := range calls {
		one := series{kit: k, n: k.o.samples(w.n), metrics: []metric{{w.metric, w.unit}}}
		one.add(by, func() ([]float64, error) {
			took, err := n.do(w.word)
			if err == nil && w.unit == unitMBps {
				took[0] = speedOf(took[0])
			}
			return took, err
		})
		errs = append(errs, one.run(ctx))
	}
	return errors.Join(errs...)
}

// speedOf returns the speed in MB/s for 10 MB in a number of milliseconds.
func speedOf(ms float64) float64 { return 10_000 / ms }

// node is a script that uses an SDK. It runs one operation at a time.
type node struct {
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	words   *lockedBuffer
}

// openNode starts a script of a directory. The variables whose names have the prefix are those of
// environ.
func openNode(ctx context.Context, dir, script, prefix string, environ ...string) (*node, error) {
	n := &node{words: &lockedBuffer{}}
	n.process = exec.CommandContext(ctx, "node", script)
	n.process.Dir, n.process.Stderr, n.process.WaitDelay = dir, n.words, cleanTimeout
	others := slices.DeleteFunc(n.process.Environ(), func(v string) bool { return strings.HasPrefix(v, prefix) })
	n.process.Env = slices.Concat(others, environ)
	in, err := n.process.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := n.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	n.in, n.out = in, bufio.NewScanner(out)
	return n, n.process.Start()
}

// do has the script run an operation, and returns how many milliseconds it took.
func (n *node) do(word string) ([]float64, error) {
	if _, err := fmt.Fprintln(n.in, word); err != nil {
		return nil, err
	}
	if !n.out.Scan() {
		return nil, fmt.Errorf("read from node: %w: %s", cmp.Or(n.out.Err(), io.EOF), lastWords(n.words.String()))
	}
	var got struct {
		MS    float64 `json:"ms"`
		Error string  `json:"error"`
	}
	if err := json.Unmarshal(n.out.Bytes(), &got); err != nil {
		return nil, err
	}
	if got.Error != "" {
		return nil, errors.New(lastWords(got.Error))
	}
	return []float64{got.MS}, nil
}

func (n *node) close() error { return errors.Join(n.in.Close(), n.process.Wait()) }
