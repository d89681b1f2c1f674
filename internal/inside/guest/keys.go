package guest

import (
	"bytes"
	"os"

	"golang.org/x/sys/unix"
)

// writeKeys writes typed keys to a terminal. Linux sends the signal of a key such as Ctrl-C at once and drops the
// unread lines before it. gVisor keeps the key behind those lines, so a program that reads nothing could not be
// interrupted; therefore writeKeys drops the lines.
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

// signalKeys returns a function that reports whether a key sends a signal and drops unread lines, by the current
// settings of the terminal.
func signalKeys(terminal *os.File) func(rune) bool {
	none := func(rune) bool { return false }
	conn, err := terminal.SyscallConn()
	if err != nil {
		return none
	}
	var t *unix.Termios
	if conn.Control(func(fd uintptr) { t, err = unix.IoctlGetTermios(int(fd), unix.TCGETS) }) != nil || err != nil {
		return none // closed: writing reports it
	}
	if t.Lflag&(unix.ISIG|unix.ICANON) != unix.ISIG|unix.ICANON || t.Lflag&unix.NOFLSH != 0 {
		return none
	}
	return func(key rune) bool {
		return key > 0 && key < 0x80 &&
			(byte(key) == t.Cc[unix.VINTR] || byte(key) == t.Cc[unix.VQUIT] || byte(key) == t.Cc[unix.VSUSP])
	}
}

// dropUnread drops typed input that no program has read. The terminal's output is not affected.
func dropUnread(terminal *os.File) {
	conn, err := terminal.SyscallConn()
	if err != nil {
		return // closed: writing reports it
	}
	_ = conn.Control(func(fd uintptr) {
		_ = unix.IoctlSetInt(int(fd), unix.TCFLSH, unix.TCOFLUSH) // our output is the terminal's input
	})
}
