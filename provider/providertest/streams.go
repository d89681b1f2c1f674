package providertest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func streamChecks() []check {
	return []check{
		{"no input", noInput},
		{"input to its end", inputToEnd},
		{"a conversation", conversation},
		{"unread input", inputUnread},
		{"output is two streams", twoStreams},
		{"order within a stream", orderWithin},
		{"any bytes", anyBytes},
		{"16 MiB both ways", bothWays},
		{"many small lines", manyLines},
		{"a slow reader holds back", slowReader},
		{"a child that keeps the output open", openOutput},
		{"unwanted output", outputUnwanted},
	}
}

func noInput(c *trial) {
	equal(c, "cat without input", c.exec(sandpit.Command{Args: []string{"cat"}}).stdout, "")
	r := c.exec(sandpit.Command{Args: []string{"cat"}, Stdin: strings.NewReader("")})
	equal(c, "cat with an empty input", r.stdout, "")
}

func inputToEnd(c *trial) {
	for _, n := range []int{1, 4096, 65536, 65537, 1_000_000} {
		r := c.exec(sandpit.Command{Args: []string{"wc", "-c"}, Stdin: strings.NewReader(strings.Repeat("x", n))})
		equal(c, "bytes that arrived", strings.TrimSpace(r.stdout), strconv.Itoa(n))
	}
}

func conversation(c *trial) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	p := c.start(sandpit.Command{Args: []string{"cat"}, Stdin: inR, Stdout: outW})
	for i := range 5 {
		line := fmt.Sprintf("line %d\n", i)
		_, err := io.WriteString(inW, line)
		c.must(err, "write")
		got := make([]byte, len(line))
		_, err = io.ReadFull(outR, got)
		c.must(err, "read")
		equal(c, "the answer", string(got), line)
	}
	c.must(inW.Close(), "close the input")
	equal(c, "status", c.wait(p), sandpit.ExitStatus{})
}

func inputUnread(c *trial) {
	r := c.exec(sandpit.Command{Args: []string{"true"}, Stdin: bytes.NewReader(make([]byte, 4<<20))})
	equal(c, "status with much input", r.status, sandpit.ExitStatus{})
	inR, inW := io.Pipe()
	r = c.exec(sandpit.Command{Args: []string{"true"}, Stdin: inR})
	equal(c, "status with input that never comes", r.status, sandpit.ExitStatus{})
	c.must(inW.Close(), "close the input")
	r = c.exec(sandpit.Command{Args: []string{"head", "-c", "3"}, Stdin: bytes.NewReader(make([]byte, 4<<20))})
	equal(c, "bytes of a program that wants no more", len(r.stdout), 3)
}

func twoStreams(c *trial) {
	r := c.exec(shellCommand("echo out; echo err >&2; echo out again"))
	equal(c, "output", r.stdout, "out\nout again\n")
	equal(c, "errors", r.stderr, "err\n")
}

func orderWithin(c *trial) {
	const lines = 500
	r := c.exec(shellCommand(`i=0; while [ $i -lt 500 ]; do echo $i; echo $i >&2; i=$((i+1)); done`))
	var want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, i)
	}
	equal(c, "output", r.stdout, want.String())
	equal(c, "errors", r.stderr, want.String())
}

func anyBytes(c *trial) {
	r := c.exec(shellCommand(`printf 'a\377\376\000\200z'; printf '\303' >&2`))
	equal(c, "output", r.stdout, "a\xff\xfe\x00\x80z")
	equal(c, "errors", r.stderr, "\xc3")
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	r = c.exec(sandpit.Command{Args: []string{"cat"}, Stdin: bytes.NewReader(all)})
	equal(c, "input and output", r.stdout, string(all))
}

// noise returns n incompressible bytes.
func noise(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data) // never fails
	return data
}

const much = 16 << 20

func bothWays(c *trial) {
	data := noise(much)
	out := sha256.New()
	p := c.start(sandpit.Command{Args: []string{"cat"}, Stdin: bytes.NewReader(data), Stdout: out})
	equal(c, "status", c.wait(p), sandpit.ExitStatus{})
	equal(c, "hash", [32]byte(out.Sum(nil)), sha256.Sum256(data))
}

func manyLines(c *trial) {
	const want = 20_000
	var lines lineCounter
	p := c.start(sandpit.Command{Args: []string{"seq", "1", strconv.Itoa(want)}, Stdout: &lines})
	c.wait(p)
	equal(c, "lines", lines.n, want)
}

type lineCounter struct{ n int }

func (l *lineCounter) Write(b []byte) (int, error) {
	l.n += bytes.Count(b, []byte("\n"))
	return len(b), nil
}

func slowReader(c *trial) {
	done := c.dir() + "/done"
	const most = 64 << 20 // more than buffers can hold
	outR, outW := io.Pipe()
	p := c.start(sandpit.Command{
		Args: []string{"sh", "-c", `head -c "$1" /dev/zero; : > "$2"`, "sh", strconv.Itoa(most), done}, Stdout: outW,
	})
	time.Sleep(300 * time.Millisecond)
	_, err := c.guest().Stat(c.ctx(), "", done)
	c.wantCode(err, "whether the program continued without a reader", sandpit.NotFound)
	var n int64
	var reading sync.WaitGroup
	reading.Go(func() { n, _ = io.Copy(io.Discard, outR) })
	equal(c, "status", c.wait(p), sandpit.ExitStatus{})
	c.must(outW.Close(), "close")
	reading.Wait()
	equal(c, "bytes", n, most)
}

func openOutput(c *trial) {
	begin := time.Now()
	r := c.exec(shellCommand("sleep 1000 & echo $!"))
	if took := time.Since(begin); took > 5*time.Second {
		c.Errorf("it took %s to end, want about no time", took)
	}
	pid := strings.TrimSpace(r.stdout)
	if !c.isAlive(pid) {
		c.Errorf("the child %q has ended with its parent", pid)
	}
	c.shell(`kill -9 "$1"`, pid)
}

func outputUnwanted(c *trial) {
	p := c.start(shellCommand("head -c 4194304 /dev/zero; head -c 4194304 /dev/zero >&2; exit 4"))
	equal(c, "status", c.wait(p), sandpit.ExitStatus{Code: 4})
}
