package guest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// LaunchArg as the guest's first argument, with a port as the second, makes it start a guest beside the first process
// of a foreign computer: detached, and listening on that TCP port. It prints a Launched when that guest answers. If
// the guest runs already, it starts no other one.
const LaunchArg = "launch"

// listenArg as the guest's first argument, with a port as the second, makes it listen on that TCP port.
const listenArg = "listen"

// Launched is what LaunchArg prints.
type Launched struct {
	// Key is the key of the guest, which only root of the computer can read.
	Key string `json:"key"`
	// Started says that the guest has just been started. Otherwise it has run before.
	Started bool `json:"started"`
}

const (
	// launchDir has the key, the log and the command logs of a guest beside a foreign first process.
	launchDir = "/var/lib/sandpit"
	// launchTime is how long such a guest may take to answer.
	launchTime = 20 * time.Second
	// launchPoll is the time between two attempts to reach it.
	launchPoll = 20 * time.Millisecond
	// maxLaunchLog is how much of its log an error repeats, in bytes.
	maxLaunchLog = 500
)

// runLaunch starts a guest that listens on a port, unless it runs.
func runLaunch(args []string) error {
	port, err := parseLaunch(args)
	if err != nil {
		return err
	}
	unlock, err := lockLaunch(launchDir)
	if err != nil {
		return err
	}
	defer unlock()
	key, err := ensureKey(launchDir)
	if err != nil {
		return err
	}
	out := Launched{Key: key}
	if !awaitKey(port, key) {
		if err := startListener(launchDir, port, key); err != nil {
			return err
		}
		out.Started = true
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

// parseLaunch returns the port in the arguments.
func parseLaunch(args []string) (int, error) {
	if len(args) != 1 {
		return 0, errors.New("want one argument: a port")
	}
	port, err := strconv.ParseUint(args[0], 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("invalid port %q", args[0])
	}
	return int(port), nil
}

// lockLaunch creates the directory, and holds a lock of it until unlock is called: two launches must not start two
// guests.
func lockLaunch(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close() // err is returned already
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { _ = f.Close() }, nil
}

// ensureKey returns the key in a directory, and creates it first if it is missing.
func ensureKey(dir string) (string, error) {
	file := filepath.Join(dir, "key")
	switch data, err := os.ReadFile(file); {
	case err == nil && len(data) > 0:
		return string(data), nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	key := rand.Text()
	return key, os.WriteFile(file, []byte(key), 0o600)
}

// awaitKey reports whether a guest with this key listens on a port. A guest that was just resumed on a busy machine may be
// slow: as long as its port accepts connections, it gets launchTime to answer.
func awaitKey(port int, key string) bool {
	for late := time.Now().Add(launchTime); ; {
		err := askKey(port, key)
		if !errors.Is(err, context.DeadlineExceeded) || time.Now().After(late) {
			return err == nil
		}
	}
}

// answersKey reports whether a guest with this key listens on a port, and answers at once.
func answersKey(port int, key string) bool { return askKey(port, key) == nil }

// askKey returns an error unless a guest with this key listens on a port.
func askKey(port int, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(port))+"/envs", http.NoBody) //nolint:gosec // of this computer
	if err != nil {
		return err
	}
	r.Header.Set(TokenHeader, key)
	r.Close = true
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		return err
	}
	_ = res.Body.Close() // was not read
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the program on port %d answers HTTP %d", port, res.StatusCode)
	}
	return nil
}

// startListener starts a guest in a session of its own and returns when it answers.
func startListener(dir string, port int, key string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	log := filepath.Join(dir, "log")
	to, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer to.Close()
	cmd := exec.Command(program, listenArg, strconv.Itoa(port)) //nolint:gosec,noctx // this program itself, which outlives this process
	cmd.Args[0] = Name
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", to, to
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	late := time.After(launchTime)
	for {
		select {
		case err := <-ended:
			return fmt.Errorf("the guest ended: %w: %s", err, readEnd(log))
		case <-late:
			return errors.Join(fmt.Errorf("the guest does not answer on port %d within %v: %s", port, launchTime, readEnd(log)), cmd.Process.Kill())
		case <-time.After(launchPoll):
			if answersKey(port, key) {
				return nil
			}
		}
	}
}

// readEnd returns the end of a log for an error.
func readEnd(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	data = bytes.TrimSpace(data)
	return string(data[max(0, len(data)-maxLaunchLog):])
}

// runListen serves on a TCP port until it receives SIGTERM.
func runListen(args []string) error {
	port, err := parseLaunch(args)
	if err != nil {
		return err
	}
	key, err := os.ReadFile(filepath.Join(launchDir, "key"))
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(key)) == "" {
		return errors.New("the key is empty")
	}
	syscall.Umask(0o022)
	if err := protectSelf(); err != nil {
		return err
	}
	return listenTCP(port, string(key))
}
