/*
The words that the live network learns at first: common first names, in no order.
*/
export const NAMES = [
    "anna emma mia sofia lena clara nora ida greta frieda maria julia laura lisa sara hannah lea leonie johanna",
    "charlotte amelia olivia isla ava ivy freya lily florence willow rosie sophie grace evelyn daisy matilda phoebe",
    "elsie millie eva alice isabella poppy ella evie harper luna aurora violet hazel stella zoe penelope layla",
    "eleanor audrey naomi ruby eliza emilia elena valentina lucia martina paula daniela carla alba noa vera carmen",
    "camila ximena renata regina victoria mariana romina antonella chiara giulia ginevra beatrice francesca elisa",
    "bianca gaia ines jade louise manon chloe camille margaux juliette romane agathe jeanne margot celeste aya sana",
    "yuki hana sakura rin mei akari aoi himari mina jisoo sumin yuna seoyeon priya ananya diya saanvi aadhya kavya",
    "meera nisha rani sunita amina fatima zainab layan maryam yasmin leila noor salma hiba zara nia imani amara ada",
    "chioma ngozi thandiwe zuri makena ayana adaeze karl paul felix leon noah elias finn jonas ben luis lukas max",
    "emil anton theo jakob moritz julian oskar henry oliver george arthur noel leo jack harry oscar archie freddie",
    "theodore alfie charlie thomas alexander joshua isaac edward william james lucas benjamin samuel daniel matthew",
    "aiden jackson logan david joseph carter owen wyatt john luke gabriel anthony dylan lincoln jaxon asher",
    "christopher ezra mateo santiago sebastian diego emiliano miguel angel javier adrian pablo hugo martin alvaro",
    "mario nicolas bruno marcos lorenzo leonardo francesco tommaso edoardo riccardo gabriele pietro louis raphael",
    "arthur jules adam mael gabin paulo sacha nathan ethan haruto yuto sota yuki hinata riku ren kaito minjun",
    "seojun doyun arjun aarav vihaan aditya sai reyansh krishna ishaan kabir rohan omar yusuf ali hassan ibrahim",
    "khalid tariq rashid kwame kofi tunde emeka jabari thabo sipho musa chidi amadi",
].join(" ").split(" ").join("\n");
