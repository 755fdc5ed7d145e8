"""The words of the made-up company Northgate: names, topics and phrase grammar, as plain data for ``synthetic``.

A table is a name and its phrases, separated by bars; ``{slot}`` in a phrase is filled from the table of that name or
by the writer. Facts, problems and remarks are clauses that start in lower case; a step is a verb phrase in its base
form; a verb is given as base form, past (equal to its participle) and gerund. Every verb of a topic takes every thing
of that topic as its object.
"""

from collections.abc import Mapping

Tables = Mapping[str, tuple[str, ...]]

DOMAIN = "northgate.example"


def tables(text: str) -> dict[str, tuple[str, ...]]:
    """Tables by name: one starts at each line that is not indented."""
    entries = text.strip().replace("\n  ", " ").splitlines()
    named = (entry.split(":", 1) for entry in entries)
    return {name: tuple(phrase.strip() for phrase in phrases.split("|")) for name, phrases in named}


STOCKS: dict[str, tuple[str, ...]] = tables("""
person: Aaron | Abena | Adele | Aditi | Agnes | Ahmed | Aiko | Alan | Alicia | Amara | Amir | Ana | Andre | Anika |
  Anton | Arjun | Asha | Astrid | Beatriz | Ben | Bianca | Boris | Brenda | Bruno | Camila | Carl | Carmen | Cecilia |
  Chidi | Chloe | Clara | Conor | Dalia | Damian | Dana | Daniel | Deepa | Diego | Dina | Dmitri | Dora | Edith |
  Eduardo | Elena | Elias | Elif | Emeka | Emma | Erik | Esther | Eva | Farah | Felix | Fiona | Frank | Gabriel |
  Gita | Grace | Greta | Hana | Harold | Hassan | Helen | Henrik | Hugo | Ibrahim | Ida | Imran | Ines | Ingrid |
  Irene | Isaac | Ivan | Jamal | Janet | Javier | Jin | Joan | Joel | Jonas | Judith | Julia | Kamal | Karen | Karim |
  Kate | Keiko | Kofi | Kwame | Lars | Laura | Leila | Leon | Lina | Linda | Lucas | Lucia | Magda | Malik | Marcus |
  Maria | Marta | Maya | Mei | Miguel | Mina | Mona | Nadia | Naomi | Nina | Nora | Oleg | Olga | Omar | Oscar |
  Owen | Pablo | Paula | Pedro | Petra | Priya | Rafael | Rajiv | Rana | Rosa | Ruth | Samir | Sandra | Sara | Selma |
  Simon | Sofia | Stefan | Sunil | Susan | Tariq | Tessa | Theo | Tomas | Uma | Vera | Victor | Vikram | Walter |
  Wanda | Wei | Yara | Yusuf | Zara | Zeynep
last_name: Abbott | Acheampong | Adler | Aguilar | Ahmadi | Akhtar | Alvarez | Amadi | Andersen | Antonov | Aoki |
  Arslan | Asante | Baker | Banerjee | Barros | Becker | Bello | Bennett | Berg | Bianchi | Bishop | Blanco |
  Boateng | Bondarenko | Bose | Brandt | Brennan | Cabrera | Calder | Campos | Carlsen | Castillo | Chandra | Chen |
  Clarke | Contreras | Costa | Cruz | Dahl | Danso | Das | Delgado | Desai | Diaz | Dogan | Duarte | Dubois | Dunn |
  Eriksen | Escobar | Evans | Farouk | Fernandez | Fischer | Fleming | Fonseca | Foster | Fuchs | Galvez | Garcia |
  Gill | Gomez | Grant | Gupta | Gustafsson | Haddad | Hale | Hamid | Hansen | Hartley | Hassan | Hayashi | Herrera |
  Hoffman | Holm | Horvat | Hughes | Ibarra | Ikeda | Iqbal | Ito | Ivanov | Jansen | Jimenez | Joshi | Kaplan |
  Kapoor | Karlsson | Kaya | Keller | Khalil | Kim | Klein | Kovac | Krause | Kuhn | Kumar | Lam | Larsen | Lee |
  Lindqvist | Lopez | Lund | Maas | Machado | Malhotra | Marin | Marsh | Mbeki | Medina | Mehta | Mendes | Meyer |
  Mills | Molina | Moreno | Morgan | Mori | Moss | Nair | Nakamura | Navarro | Nguyen | Nilsson | Nkosi | Novak |
  Nunez | Obi | Okafor | Olsen | Omondi | Ortega | Osei | Ozturk | Pacheco | Park | Patel | Pereira | Petrov |
  Quispe | Rahman | Ramos | Rao | Reyes | Richter | Rivera | Rojas | Romero | Rossi | Saito | Salazar | Santos |
  Sato | Schmidt | Sharma | Silva | Singh | Soto | Stein | Suarez | Svensson | Takeda | Tan | Thapa | Torres | Tran |
  Turner | Vargas | Vega | Verma | Vogel | Walsh | Weber | Wong | Yilmaz | Zhang | Ziegler
title: Analyst | Senior Analyst | Coordinator | Team Lead | Manager | Associate | Planner | Specialist | Director |
  Engineer | Senior Engineer | Advisor | Administrator | Program Manager | Assistant Manager | Controller |
  Consultant | Officer
site: Rotterdam | Leeds | Tampa | Gdansk | Porto | Calgary | Nagoya | Bilbao | Lagos | Pune | Trieste | Bremen |
  Denver | Cork | Malmo | Izmir | Accra | Quito | Perth | Lyon | Memphis | Tallinn | Mombasa | Osaka
project_first: Copper | Blue | Silver | Winter | Quiet | Granite | Amber | Harbor | River | Cedar | Golden |
  Northern | Hidden | Crimson | Maple | Summer | Iron | Paper | Morning | Velvet | Lunar | Coral | Desert | Glass |
  Prairie | Royal | Salt | Scarlet | Stone | Swift | Timber | Violet | Wild | Willow | Arctic | Bronze | Canyon |
  Cobalt | Distant | Ember
project_second: Lantern | Heron | Bridge | Orchard | Compass | Falcon | Meadow | Anchor | Beacon | Cove |
  Crane | Delta | Drum | Feather | Field | Forge | Gate | Horizon | Island | Kite | Ladder | Lark | Ledger | Loom |
  Mill | Mirror | Otter | Passage | Pine | Quarry | Reef | Saddle | Signal | Sparrow | Station | Summit | Thistle |
  Tower | Valley | Wharf
client_first: Halvorsen | Brightwater | Castell | Dunmore | Eastlake | Fairholm | Glenrock | Hawthorne | Juniper |
  Kestrel | Lakemont | Merrow | Norwood | Pellier | Quayside | Redfern | Sandoval | Thornbury | Vantor | Westbrook |
  Yarrow | Zellner | Ashgrove | Belmonte | Corvin | Drayton | Fenwick | Larkspur
client_second: Foods | Labs | Marine | Textiles | Energy | Motors | Paper | Retail | Systems | Steel | Farms |
  Pharma | Media | Glass | Airways | Optics | Chemicals | Outdoor | Furniture | Partners
month: January | February | March | April | May | June | July | August | September | October | November | December
weekday: Monday | Tuesday | Wednesday | Thursday | Friday
number: two | three | four | five | six | seven | eight | nine | ten | eleven | twelve
""")
# Numbers come from stocks too, as people write them.
STOCKS |= {
    "letter": tuple("ABCD"),
    "floor": tuple(str(n) for n in range(1, 10)),
    "id": tuple(str(n) for n in range(2, 25)),
    "percent": tuple(str(n) for n in range(2, 39)),
    "thousands": tuple(str(n) for n in range(2, 96)),
    "num_days": tuple(str(5 * n) for n in range(2, 19)),
    "big": tuple(f"{10 * n:,}" for n in range(12, 981)),
    "amount": tuple(f"{n * 10**power:,}" for n in range(11, 100) for power in (1, 2, 3)),
    "clock_24": tuple(f"{hour}:{minute:02d}" for hour in range(8, 18) for minute in (0, 15, 30, 45)),
    "clock_am": tuple(f"{hour}:{minute:02d}" for hour in (8, 9, 10, 11) for minute in (0, 15, 30, 45)),
    "clock_pm": tuple(f"{hour}:{minute:02d}" for hour in (12, 1, 2, 3, 4, 5) for minute in (0, 15, 30, 45)),
}
STOCKS["project"] = tuple(f"{a} {b}" for a in STOCKS["project_first"] for b in STOCKS["project_second"])
STOCKS["client"] = tuple(f"{a} {b}" for a in STOCKS["client_first"] for b in STOCKS["client_second"])

# Long form, short form: a writer's own rate decides between them.
CONTRACTIONS: Tables = tables("""
I_will: I will | I'll
I_am: I am | I'm
I_have: I have | I've
I_would: I would | I'd
we_will: we will | we'll
we_are: we are | we're
do_not: do not | don't
does_not: does not | doesn't
did_not: did not | didn't
cannot: cannot | can't
is_not: is not | isn't
it_is: it is | it's
that_is: that is | that's
""")

# What every topic shares. A frame around a {step}, {fact} or {problem} names no {colleague}, {client} or {project},
# since those may do so.
PHRASES: dict[str, tuple[str, ...]] = tables("""
hello: Hi {to}, | Hello {to}, | Dear {to}, | {to}, | Hey {to}, | Good morning {to}, | Good afternoon {to}, |
  Hi {to} and {colleague}, | {to} - | Hi {to} -
opening: thanks for {doing} the {thing} {past} | thank you for the {thing} you sent {past} |
  I went through the {thing} {past}, and {finding} | {person} and I {did} the {thing} for {project} {past} |
  a quick note on the {thing}: {fact} | here is where the {thing} stands: {problem} |
  I {did} the {thing} for {project} {past} | we met with {client} {past} to go over the {thing} |
  {person} asked me to write to you about {matter} | after our call {past} I {did} the {thing} again |
  {I_am} writing about {matter} and the {thing} for {project} |
  sorry for the late answer about the {thing}; {excuse} |
  you asked {past} about {matter}, so here is what {person} found | there is news on the {thing}: {fact} |
  the {thing} for {client} came back {past} with {num} comments | {client} wrote {past} about {matter} |
  I have heard nothing about the {thing} since {day_past} | here is the {thing} for {project}, as promised {past} |
  can we talk {on} about the {thing} for {project}? | do you have time {on} to go over the {thing} with {person}? |
  {I_am} back from {site} and have {did} the {thing} | it was good to talk {past} about {matter} |
  one more point on the {thing} after the meeting {past}: {problem} | I spoke with {person} {past} about {matter} |
  the meeting about the {thing} {past} ran long, but {fact} | {I_have} attached the {thing} for {project}; {finding} |
  we have a problem with the {thing} again: {problem} | before I {do} the {thing} {on}, I need to ask about {matter}
finding: it looks fine apart from {matter} | I found {num} open points | I left {num} comments for {team} |
  I have {num} questions about {matter} | the main gap is {matter} | I agree with {person} on {matter} |
  most of it is in good shape | page {id} needs another look | {person} had already changed {num} lines
excuse: I was in {site} until {day_past} | {person} needed me for {project} | we had visitors from {client} |
  I had to wait for {team} | the week was full of {project} | I was out sick {past}
statement: {fact} | {fact}{tail} | {problem} | {problem}{tail} | {person} says that {fact} |
  {person} told me {past} that {fact} | {team} {confirms} that {fact} | {team} {confirms} that {problem} |
  {I_will} {step} {on} | {I_will} {step} {by}, then I can {do} the {other} | {I_have} asked {person} to {step} {by} |
  {person} offered to {step} {on} | {person} and I want to {step} {on} |
  {we_will} {step} as soon as the {thing} is {did} | the plan is to {step} {on} and to {do} the {other} after that |
  we agreed {past} to {step} | we could {step}, but {problem} | it would help to {step} before we {do} the {other} |
  {I_would} rather {step} than lose {num} more days | {I_would} suggest that we {step} {on} |
  I {did} the {other} {past}, and {finding} | I also {did} the {other} for {client} {past} |
  {person} {did} the {other} {past} and left {num} comments |
  {person} has {did} the {thing}, so {we_are} waiting for {team} now |
  the {thing} {is_not} final yet because {problem} | the {thing} is on the agenda for {day} at {time} in {room} |
  the latest {thing} is in the {project} folder, {num} pages in all | there is {an_other} for {client} in my inbox |
  {client} wants to see the {thing} before {day} | {client} called {past} about {matter} |
  there are still {num} open questions about {matter} | I {do_not} have the {other} for {project} yet |
  I {did_not} get to the {other} {past}, but {I_will} {do} it {on} |
  {I_have} spent {num} hours on {matter} since {day_past} | I set aside {num} hours on {day} for the {other} |
  {project} is {num} days {ahead} schedule | the next review of {project} is {on} in {room} |
  {colleague} takes over {project} from {day} | nobody from {team} has looked at {matter} yet |
  the numbers for {project} look {looks} to me | I can {do} the {other} while you {step} |
  I put the {other} on your desk with {num} notes | I sent the {other} to {client} {past} |
  {we_are} meeting {client} {on} to go over the {thing} |
  {I_am} in {site} until {day} and can {do} the {thing} there | {person} will cover {project} while I am in {site} |
  {person} raised {matter} again {past} | {it_is} mostly about {matter} and the {other}
remark: the reason is that {problem} | the good news is that {fact} | the main issue is that {problem} |
  my view is that we should {step} {by} | for {project} the deadline is still {day} |
  if {person} agrees, we can {step} {by} | if that {does_not} work, {person} can {step} {on} |
  unless {person} objects, {I_will} {step} {on} | once {person} is back, we should {do} the {other} for {client} |
  until {day} the {other} stays as it is for {project} | your point about {matter} is fair, but {fact} |
  as for {matter}, {fact} | {that_is} why I {did} the {other} {past} | the short version is that {fact} |
  what worries me is that {problem} | one thing I would like to change is {matter} for {project} |
  since {problem}, {we_will} have to {step} | while {person} is in {site}, I can {do} the {other} |
  in that case {person} and I will {step} {on} | whatever {client} decides, the {thing} has to be {did} {by}
tail: {pause} so {I_will} {step} {on} | {pause} which is why we need to {step} | {pause} and {person} is aware of it |
  {pause} though {person} sees it differently | {pause} so the {other} has to wait until {day} |
  {pause} which leaves us {num} days | {pause} so expect a call from {person} {by} |
  {pause} and {person} will {step} {on} | {pause} and that changes the {other} | , according to {team} |
  , if {person} is right | {pause} and nobody in {site} knows why | {pause} which fits what {person} told us {past} |
  {pause} so please {do} the {other} first
ask: can you {step} {by}? | could you {do} the {other} {by}? | would you mind {doing} the {thing} before {day}? |
  please {step} {by} | please {do} the {other} and send it to {person} {by} |
  please let {person} know whether {team} can {step} | please tell {person} that {fact} |
  who is going to {step} {on}? | who {did} the {other} {past}? | do you know why {problem}? |
  do you know if {person} plans to {step}? | is it true that {fact}? | is {day} still fine for the {thing}? |
  what should we tell {client} about {matter}? | when do you expect to {do} the {other} for {project}? |
  have you heard from {client} about {matter}? | does {time} on {day} suit you for the {thing}? |
  should I {step}, or is {person} on it? | are you able to {step} {on}? |
  where can I find the {other} for {project}? | may I send the {thing} to {client} {on}? |
  could {person} join us in {room} at {time} to go over the {thing}? |
  let us {do} the {thing} together {on} in {room} | I need your answer on {matter} {by} |
  I need the {other} from you {by} | please check whether {problem} | how many hours would it take to {step}? |
  what did {client} say about {matter} {past}? | please remind me {on} to {step}
closing: let me know if {day} at {time} works for you | let me know what you think about {matter} |
  let me know whether {person} can {step} | call me {on} if anything about {matter} is unclear |
  I am in {site} on {day}, so call me after {time} | see you {on} in {room} | thanks for your help with {matter} |
  thanks in advance for {doing} the {other} | thanks again for the time you put into {project} |
  {I_will} keep you posted on {project} | I look forward to hearing from {team} {by} |
  I hope that helps with the {thing} | {I_will} be in touch {on} about {matter} |
  if you have questions about {matter}, ask {person} | any comments on the {thing} {by} would be welcome |
  please copy {person} on your answer about {matter} | there will be more {on}, once {person} has {did} the {thing} |
  {I_am} happy to explain {matter} {on} | give my best to {colleague} in {site} | good luck with the {thing} {on} |
  have a good trip to {site} and give my best to {colleague} | say hello to {person} and the others in {site} |
  sorry again for the delay with the {thing} | {I_would} be glad to have your view on {matter} {by} |
  you can reach me in {site} until {day} | that is all from me on {project} for {now} |
  {I_will} call {person} {on} and report back | tell {person} to call me about {matter}
aside: to be honest | as far as I can tell | for what it is worth | on a related note | as discussed {past} | in short |
  just so you know | by the way | as you know | to be fair | if I remember correctly | strictly between us |
  to my surprise | to be clear | in any case | on top of that | if you ask me | unless I am mistaken | sad to say |
  speaking of {project} | much to the relief of {team} | before I forget | as it happens | as it turns out | in fact |
  frankly | luckily | unfortunately | oddly enough | as {person} will tell you | good to know | in other words |
  for the record | if it helps | in all fairness | as I said {past}
past: yesterday | this morning | last week | earlier this week | on {weekday} | on {date_past} | the other day |
  late on {weekday} | over lunch on {weekday} | two days ago
day_past: {weekday} | {date_past}
day: {weekday} | {date_next} | {weekday} next week
on: on {weekday} | on {date_next} | tomorrow | tomorrow afternoon | next week | later today | on {weekday} at {time} |
  first thing on {weekday} | early next week | after lunch on {weekday}
by: by {weekday} | by {date_next} | before {date_next} | by noon on {weekday} | by the end of the week |
  by the end of {month_next} | by {time} tomorrow | before {weekday} next week | by {weekday} evening
room: room {floor}{letter} | meeting room {id} | the small room on floor {floor} | my office in {site} |
  the canteen on floor {floor} | the {site} room
confirms: has confirmed | reports | tells me | found out {past} | warned me {past} | assumes | wrote {past}
ahead: ahead of | behind
looks: right | low | high | optimistic | odd | solid | better than {past_month} | too round | plausible
past_month: those from {month} | the ones in the {other}
now: today | now | this week | the moment | this month | the time being
postscript: PS: {statement} | PS - {statement} | One more thing: {statement} | On a different note: {statement}
pct: {percent}% | {percent} percent | {percent}.5% | about {percent} percent | roughly {percent}%
money: ${amount} | {amount} dollars | USD {amount} | ${thousands}k
time: {clock_24} | {clock_24} | {clock_24} | {clock_am} am | {clock_pm} pm
date: {month_name} {dom} | {dom} {month_name} | the {ordinal} | {month_short} {dom}
goodbye: Thanks | Thank you | Best | Best regards | Kind regards | Regards | Cheers | Many thanks | All the best |
  Warm regards | With thanks | Talk soon | Best wishes | Take care | Thanks again | Sincerely | Yours | Greetings
me: {first} | {first} | {first} {last} | {first} {l}. | {f}{l}
step: talk to {colleague} about {matter} | send the {other} to {client} | set up a call with {client} |
  check the {thing} with {colleague} | raise {matter} with {client} | show {colleague} the {other} |
  file the {other} under {project} | ask {client} about {matter} | write a note on {matter} for {team}
""")
PHRASES["pause"] = (",", ",", " -")
PHRASES["card"] = (
    "{first} {last}\n{title}, {department} | ext {extension}",
    "{first} {last} | {title}\nNorthgate {home}, ext {extension}",
    "{first} {last}, {department}\nNorthgate {home} - phone {extension}",
    "{first} {last}\n{title}, Northgate {home}\n{address}",
)
