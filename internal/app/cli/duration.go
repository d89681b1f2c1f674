package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// never is the word for an unlimited time.
const never = "never"

// parseDurationOrNever parses a duration that may be in days, or "never", which is below zero.
// Empty is zero.
func parseDurationOrNever(flag, text string) (time.Duration, error) {
	if text == never {
		return -time.Second, nil
	}
	d, err := parseAge(flag, text)
	if err != nil {
		return 0, sandpit.Errorf(sandpit.Invalid, "%s %q: want a time such as 30m, 12h or 2d, or never", flag, text)
	}
	return d, nil
}

// parseAge parses a duration that may also be in days.
func parseAge(flag, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	var days int
	if n, err := fmt.Sscanf(text, "%dd", &days); n == 1 && err == nil && fmt.Sprintf("%dd", days) == text && days > 0 && days < 36500 {
		return time.Duration(days) * 24 * time.Hour, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return d, nil
	}
	return 0, sandpit.Errorf(sandpit.Invalid, "%s %q: want a time such as 30d or 12h", flag, text)
}

// formatDuration returns a duration as flags accept it, such as 2d, 1h or 1h30m.
func formatDuration(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func formatDurationOrNever(d time.Duration) string {
	if d <= 0 {
		return never
	}
	return formatDuration(d)
}
