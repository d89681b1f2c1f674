package main

import "testing"

func TestNewestPatch(t *testing.T) {
	for _, tc := range []struct {
		own  string
		list []string
		want string
	}{
		{"1.26.8", []string{"1.25.12", "1.26.0", "1.26.9", "1.26.11", "1.26rc1", "1.27.4"}, "1.26.11"},
		{"1.26.11", []string{"1.26.9", "1.26.11"}, "1.26.11"},
		{"1.27.0", []string{"1.26.11"}, "1.27.0"},
	} {
		if got := newestPatch(tc.own, tc.list); got != tc.want {
			t.Errorf("newestPatch(%s): %s, want %s", tc.own, got, tc.want)
		}
	}
}
