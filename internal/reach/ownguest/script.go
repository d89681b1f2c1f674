package ownguest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/inside/guestbin"
)

// What the script prints if it does not launch the guest: the program is missing on a computer of the architecture that
// follows, or the user has not the rights of root.
const (
	answerMissing = "missing "
	answerNoRoot  = "no-root"
)

const (
	// maxOutput bounds what the script may print, in bytes.
	maxOutput = 64 << 10
	// maxText bounds the part of it that an error repeats, in bytes.
	maxText = 500
)

// launchScript returns the script that launches the guest. packed is the file with the program, in gzip's format, or
// "": then the program must be there. A directory that cannot be written has the program already.
func (c Computer) launchScript(packed string) string {
	return fmt.Sprintf(`set -u
packed='%s' wanted='%s %s' dir=%s program=%s
if [ "$(id -u)" = 0 ]; then as=
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then as='sudo -n'
else echo %s; exit 0
fi
isCurrent() {
	[ -x "$program" ] || return 1
	command -v sha256sum >/dev/null 2>&1 || return 0
	have=$(sha256sum "$program" | cut -d' ' -f1)
	case " $wanted " in *" $have "*|"   ") return 0;; esac
	! $as test -w "$dir"
}
if [ -n "$packed" ]; then
	gzip -dc "$packed" >"$packed.out" && rm -f "$packed" &&
		$as mkdir -p "$dir" && $as chown 0:0 "$packed.out" && $as chmod 755 "$packed.out" && $as mv -f "$packed.out" "$program" || exit 1
elif ! isCurrent; then
	echo "%s$(uname -m)"; exit 0
fi
exec $as "$program" %s %d
`, packed, guestbin.Digest("amd64"), guestbin.Digest("arm64"), sandpit.GuestDir, sandpit.GuestProgram, answerNoRoot, answerMissing, guest.LaunchArg, c.Port)
}

// run runs a script and returns what it printed.
func (c Computer) run(ctx context.Context, script string) (string, error) {
	r, err := c.Run(ctx, script)
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(r.Stdout[:min(len(r.Stdout), maxOutput)]))
	switch {
	case r.Code != 0:
		return "", sandpit.Errorf(sandpit.Unsupported, "this computer cannot run it: exit status %d: %s", r.Code, plainText(string(r.Stderr)))
	case text == answerNoRoot:
		return "", sandpit.Errorf(sandpit.Unsupported, "the user of this computer has not the rights of root, and cannot get them with sudo")
	}
	return text, nil
}

// keyPattern is the form of keys that the guest creates.
var keyPattern = pattern.New(`^[A-Z2-7]{26,64}$`)

// parseLaunched reads the last line that the script printed.
func parseLaunched(text string) (l guest.Launched, err error) {
	last := text[strings.LastIndexByte(text, '\n')+1:]
	if err := json.Unmarshal([]byte(last), &l); err != nil || !keyPattern().MatchString(l.Key) {
		return l, sandpit.Errorf(sandpit.Unsupported, "this computer cannot run it: unexpected answer of %d bytes", len(text)) // it may contain a key
	}
	return l, nil
}

// plainText returns a text of the computer for an error: printable and bounded.
func plainText(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(text, ""))
	return textlen.Shorten(strings.TrimSpace(text), maxText)
}
