package applet

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// Identity is the applet that reports its user and the system.
const Identity = "identity"

// IdentityInfo is the answer of Identity.
type IdentityInfo struct {
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	Home string `json:"home"`
	// System is the name of the image's distribution, Kernel the kernel's version.
	System string `json:"os"`
	Kernel string `json:"kernel"`
	Arch   string `json:"arch"` // as Go names it
	// Dir is the working directory, "" if it has been removed.
	Dir string `json:"dir"`
	// State is the first of Dir, Home and /tmp in which the user can create files, "" if there is no such directory.
	State string `json:"state"`
}

func identifyUser(context.Context, struct{}) (IdentityInfo, error) {
	info := IdentityInfo{UID: os.Getuid(), GID: os.Getgid(), Home: homeDir(), System: "Linux", Arch: runtime.GOARCH}
	info.Dir = workDir()
	for _, dir := range []string{info.Dir, info.Home, os.TempDir(), "/tmp"} {
		if info.State == "" && filepath.IsAbs(dir) && canWrite(dir) {
			info.State = filepath.Clean(dir)
		}
	}
	var name syscall.Utsname
	if err := syscall.Uname(&name); err != nil {
		return info, err
	}
	var release []byte
	for _, c := range name.Release {
		if c == 0 {
			break
		}
		release = append(release, byte(c)) //nolint:gosec // a character, which is signed on some machines
	}
	info.Kernel = strings.ToValidUTF8(string(release), "?")
	// Not every image has the file.
	if data, err := os.ReadFile("/etc/os-release"); err == nil {
		lines := bufio.NewScanner(bytes.NewReader(data))
		for lines.Scan() {
			if value, found := strings.CutPrefix(lines.Text(), "PRETTY_NAME="); found {
				info.System = strings.ToValidUTF8(strings.Trim(value, `"'`), "?")
			}
		}
	}
	return info, nil
}

// workDir returns the working directory without symbolic links. Getwd would trust the variable PWD, which the image
// can set.
func workDir() string {
	dir, err := os.Readlink("/proc/self/cwd")
	if err != nil || !filepath.IsAbs(dir) {
		dir, err = syscall.Getwd()
	}
	if err != nil || !filepath.IsAbs(dir) || !isDir(dir) {
		return ""
	}
	return dir
}

func isDir(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir()
}

// canWrite reports whether this process can create files in a directory.
func canWrite(dir string) bool {
	const write, search = 2, 1 // W_OK and X_OK of access(2)
	return isDir(dir) && syscall.Access(dir, write|search) == nil
}

func homeDir() string {
	dir, err := os.UserHomeDir()
	if err != nil {
		return "/" // HOME is not set
	}
	return dir
}
