package gateway

// GuestPort is the port that is never public.
const GuestPort = guestPort
