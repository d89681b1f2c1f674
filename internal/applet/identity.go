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
	info := IdentityInfo{UID: os.Getuid(), GID: os.Getgid(), Home: os.Getenv("HOME"), System: "Linux", Arch: runtime.GOARCH}
	var name syscall.Utsname
	if err := syscall.Uname(&name); err != nil {
		return info, err
	}
	for _, c := range name.Release {
		if c == 0 {
			break
		}
		info.Kernel += string(rune(byte(c)))
	}
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
