package cli

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// formatCount is for messages that count.
func formatCount(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func formatYesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// shortDigest returns the beginning of a digest, as tables show it.
func shortDigest(digest string) string {
	const enough = 12
	hex := strings.TrimPrefix(digest, "sha256:")
	return hex[:min(len(hex), enough)]
}

// formatDecimalBytes returns a size in kB, MB and so on, as Docker prints the sizes of images.
func formatDecimalBytes(bytes int64) string {
	const unit = 1000
	if bytes < unit {
		return fmt.Sprintf("%d B", bytes)
	}
	value, names := float64(bytes), "kMGTPE"
	i := -1
	for value >= unit && i < len(names)-1 {
		value /= unit
		i++
	}
	return fmt.Sprintf("%.3g %cB", value, names[i])
}

// formatAge returns how long ago a time was.
func formatAge(at time.Time) string {
	const day = 24 * time.Hour
	if at.IsZero() {
		return "-"
	}
	switch age := time.Since(at); {
	case age < time.Minute:
		return "now"
	case age < time.Hour:
		return fmt.Sprintf("%d min ago", int(age/time.Minute))
	case age < 2*day:
		return fmt.Sprintf("%d h ago", int(age/time.Hour))
	case age < 60*day:
		return fmt.Sprintf("%d days ago", int(age/day))
	default:
		return at.Format(time.DateOnly)
	}
}

// formatWhen returns the distance of a time from now.
func formatWhen(at time.Time) string {
	const day = 24 * time.Hour
	left := time.Until(at)
	switch {
	case at.IsZero():
		return "never"
	case left <= 0:
		return formatAge(at)
	case left < time.Minute:
		return fmt.Sprintf("in %d s", int(left/time.Second)+1)
	case left < 2*time.Hour:
		return fmt.Sprintf("in %d min", int(left.Round(time.Minute)/time.Minute))
	case left < 2*day:
		return fmt.Sprintf("in %d h", int(left.Round(time.Hour)/time.Hour))
	case left < 60*day:
		return fmt.Sprintf("in %d days", int(left.Round(day)/day))
	default:
		return at.Format(time.DateOnly)
	}
}

// formatTime returns a time and its distance from now.
func formatTime(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.Local().Format(time.DateTime) + " (" + formatWhen(at) + ")"
}

// formatLabels returns labels in order, as flags accept them.
func formatLabels(labels map[string]string) string {
	list := make([]string, 0, len(labels))
	for name, value := range labels {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}

// formatLimit returns a text about a limit.
func formatLimit(limit int64, show func(int64) string) string {
	if limit == 0 {
		return " (no limit)"
	}
	return " of " + show(limit)
}

func formatCPULimit(limit float64) string {
	if limit == 0 {
		return " (no limit)"
	}
	return " of " + strconv.FormatFloat(limit, 'g', -1, 64) + " CPUs"
}

func formatPeak(bytes int64) string {
	if bytes == 0 {
		return ""
	}
	return " (at most " + formatBytes(bytes) + ")"
}

// formatBytes returns a size in KiB, MiB and so on.
func formatBytes(bytes int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	value, i := float64(bytes), 0
	for value >= 1024 && i < len(units)-1 {
		value, i = value/1024, i+1
	}
	return strconv.FormatFloat(math.Round(value*10)/10, 'f', -1, 64) + " " + units[i]
}

// formatState returns a state, and whether a paused sandbox is suspended.
func formatState(s sandpit.Sandbox) string {
	if s.State == sandpit.StatePaused && s.Suspended {
		return string(s.State) + " on disk"
	}
	return string(s.State)
}
