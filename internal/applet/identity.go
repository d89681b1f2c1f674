package applet

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"runtime"
	"strings"
	"syscall"
)

// Identity is the applet that tells who runs it, and where.
const Identity = "identity"

// IdentityInfo is its answer.
type IdentityInfo struct {
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	Home string `json:"home"`
	// System is the name of the image's distribution, Kernel the kernel's version.
	System string `json:"os"`
	Kernel string `json:"kernel"`
	Arch   string `json:"arch"` // as Go names it
}

func identify(context.Context, struct{}) (IdentityInfo, error) {
	info := IdentityInfo{UID: os.Getuid(), GID: os.Getgid(), Home: home(), System: "Linux", Arch: runtime.GOARCH}
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
	// Not every image says what it is.
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

func home() string {
	dir, err := os.UserHomeDir()
	if err != nil {
		return "/" // nobody has said
	}
	return dir
}
