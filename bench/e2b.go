package main

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
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

//go:embed e2b.mjs
var e2bScript []byte

// e2bPackage has the files with which npm installs E2B's SDK.
const e2bPackage = "conformance/e2b"

// e2bLimit is how long installing the SDK may take.
const e2bLimit = 3 * time.Minute

// e2bs measures sandpit through E2B's SDK: a server with a full pool, and one without a pool, whose
// sandboxes have the network that the SDK requests.
func (k *kit) e2bs(ctx context.Context) error {
	if !k.o.wants(nameE2B) {
		return nil
	}
	dir, err := k.installE2B(ctx)
	if err != nil {
		k.report.skip("E2B's SDK", err.Error())
		k.note("without E2B's SDK: %v", err)
		return nil
	}
	warm := fmt.Sprintf("[[pool]]\nimage = %q\nsize = %d\n", k.root.path, poolSize)
	return errors.Join(
		k.withE2B(ctx, dir, "warm", "allow_internet_access = false\n"+warm, k.warmE2B),
		k.withE2B(ctx, dir, "cold", "", k.coldE2B),
		k.withE2B(ctx, dir, "code", "allow_internet_access = false\n", k.codeE2B),
	)
}

// installE2B returns a directory with the SDK and a script that uses it.
func (k *kit) installE2B(ctx context.Context) (string, error) {
	if k.root.what == busyboxAlone {
		return "", errors.New("the root file system has no bash")
	}
	dir := filepath.Join(k.dir, "e2b")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(filepath.Join(e2bPackage, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600) //nolint:gosec // the names are above
		}
		if err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "e2b.mjs"), e2bScript, 0o600); err != nil {
		return "", err
	}
	if _, err := exec.LookPath("node"); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, e2bLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w: %s", err, lastWords(string(out)))
	}
	return dir, nil
}

// withE2B measures with a new server, with settings of E2B's section.
func (k *kit) withE2B(ctx context.Context, dir, name, settings string, do func(context.Context, *served, *node) error) (err error) {
	s, url, key, err := k.openServer(ctx, "e2b-"+name, fmt.Sprintf("[manager]\nmax_sandboxes = 300\n[e2b]\ntemplates = { base = %q, code = \"host\" }\n%s", k.root.path, settings))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	n, err := openNode(ctx, dir, url, key)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	return do(ctx, s, n)
}

// settled is how long a pool must be full before it is measured: by then the last spare has started,
// and the previous sandbox is deleted.
const settled = 500 * time.Millisecond

// warmE2B measures a server with a full pool.
func (k *kit) warmE2B(ctx context.Context, s *served, n *node) error {
	life := series{kit: k, n: k.o.samples(30), metrics: []metric{{metricE2BWarm, unitMS}}}
	life.add(byE2B, func() ([]float64, error) {
		if err := errors.Join(s.full(ctx), pauseFor(ctx, settled)); err != nil {
			return nil, err
		}
		return n.do("life")
	})
	errs := []error{life.run(ctx)}
	if _, err := n.do("open"); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, w := range []struct {
		metric  string
		unit    string
		n       int
		word    string
		convert func(float64) float64
	}{
		{metricE2BRun, unitMS, 100, "run", func(ms float64) float64 { return ms }},
		{metricE2BWrite, unitMBps, 20, "write", speedOf},
		{metricE2BRead, unitMBps, 20, "read", speedOf},
	} {
		one := series{kit: k, n: k.o.samples(w.n), metrics: []metric{{w.metric, w.unit}}}
		one.add(byE2B, func() ([]float64, error) {
			took, err := n.do(w.word)
			if err != nil {
				return nil, err
			}
			return []float64{w.convert(took[0])}, nil
		})
		errs = append(errs, one.run(ctx))
	}
	_, err := n.do("close")
	return errors.Join(append(errs, err)...)
}

// speedOf returns the speed in MB/s for 10 MB in a number of milliseconds.
func speedOf(ms float64) float64 { return 10_000 / ms }

// coldE2B measures creating sandboxes without a pool.
func (k *kit) coldE2B(ctx context.Context, _ *served, n *node) error {
	life := series{kit: k, n: k.o.samples(20), metrics: []metric{{metricE2BCold, unitMS}}}
	life.add(byE2B, func() ([]float64, error) { return n.do("life") })
	hundred := series{kit: k, n: k.o.samples(3), metrics: []metric{{metricE2BHundred, unitMS}}}
	if !k.o.quick {
		hundred.add(byE2B, func() ([]float64, error) { return n.do("hundred") })
	}
	return errors.Join(life.run(ctx), hundred.run(ctx))
}

// codeE2B measures the first run of code in new sandboxes. They start from a snapshot in which the
// interpreter already runs.
func (k *kit) codeE2B(ctx context.Context, _ *served, n *node) error {
	if _, err := n.do("kernels"); err != nil {
		k.report.skip(metricE2BCode, err.Error())
		k.note("without a code interpreter, which needs IPython: %v", err)
		return nil
	}
	code := series{kit: k, n: k.o.samples(20), metrics: []metric{{metricE2BCode, unitMS}}}
	code.add(byE2B, func() ([]float64, error) { return n.do("code") })
	return code.run(ctx)
}

// node is the script, which runs one operation at a time.
type node struct {
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	words   *lockedBuffer
}

func openNode(ctx context.Context, dir, url, key string) (*node, error) {
	n := &node{words: &lockedBuffer{}}
	n.process = exec.CommandContext(ctx, "node", "e2b.mjs")
	n.process.Dir, n.process.Stderr, n.process.WaitDelay = dir, n.words, cleanTimeout
	environ := slices.DeleteFunc(n.process.Environ(), func(v string) bool { return strings.HasPrefix(v, "E2B_") })
	n.process.Env = slices.Concat(environ, []string{"E2B_API_URL=" + url, "E2B_SANDBOX_URL=" + url, "E2B_API_KEY=" + key})
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
