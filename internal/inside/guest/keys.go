package guest

import (
	"bytes"
	"os"

	"golang.org/x/sys/unix"
)

// writeKeys writes what is typed to a terminal. Linux sends the signal of a key such as
// Ctrl-C at once, and drops the lines before it that nobody has read; gVisor would keep
// the key behind such a line, and who runs a program that reads nothing could not
// interrupt it any more. So the lines are dropped here.
func writeKeys(terminal *os.File, data []byte) error {
	for len(data) > 0 {
		n := len(data)
		if i := bytes.IndexFunc(data, signalKeys(terminal)); i == 0 {
			dropUnread(terminal)
			n = 1
		} else if i > 0 {
			n = i
		}
		if _, err := terminal.Write(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// signalKeys returns what says whether a key sends a signal, and drops lines with it, as the
// terminal is set now.
func signalKeys(terminal *os.File) func(rune) bool {
	none := func(rune) bool { return false }
	conn, err := terminal.SyscallConn()
	if err != nil {
		return none
	}
	var t *unix.Termios
	if conn.Control(func(fd uintptr) { t, err = unix.IoctlGetTermios(int(fd), unix.TCGETS) }) != nil || err != nil {
		return none // it is closed, which writing tells
	}
	if t.Lflag&(unix.ISIG|unix.ICANON) != unix.ISIG|unix.ICANON || t.Lflag&unix.NOFLSH != 0 {
		return none
	}
	return func(key rune) bool {
		return key > 0 && key < 0x80 &&
			(byte(key) == t.Cc[unix.VINTR] || byte(key) == t.Cc[unix.VQUIT] || byte(key) == t.Cc[unix.VSUSP])
	}
}

// dropUnread drops what was typed and not read. What the terminal shows stays.
func dropUnread(terminal *os.File) {
	conn, err := terminal.SyscallConn()
	if err != nil {
		return // it is closed, which writing tells
	}
	_ = conn.Control(func(fd uintptr) {
		_ = unix.IoctlSetInt(int(fd), unix.TCFLSH, unix.TCOFLUSH) // what we put out is what it takes in
	})
}
